package servers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// KafkaJars is where "make kafka" puts the jars, seen from the module's directory.
const KafkaJars = "kafka/target/lib"

// Kafka gives the URL of an Apache Kafka that makes no topics by itself.
func Kafka(t testing.TB) string {
	t.Helper()
	if url := os.Getenv("KAFKA_URL"); url != "" {
		return url
	}
	return StartKafka(t).URL()
}

// KafkaServer is one broker, which is its own controller, that a test can kill.
type KafkaServer struct {
	dir      *directory
	port     string
	java     []string
	settings string
}

// StartKafka starts one for this test alone.
func StartKafka(t testing.TB) *KafkaServer {
	t.Helper()
	jars, err := filepath.Abs(KafkaJars)
	require.NoError(t, err)
	if found, _ := filepath.Glob(filepath.Join(jars, "kafka_2.13-*.jar")); len(found) == 0 {
		missing(t, "KAFKA_URL", "not set, or of no use to a test that kills its server, and there are no jars in %s: make kafka", KafkaJars)
	}
	java := installed(t, "KAFKA_URL", "java", "/usr/bin/java")
	k := &KafkaServer{dir: newDirectory(t), port: freePort(t), java: []string{
		java, // fast at the start, and small, rather than fast later
		"-Xms128m", "-Xmx384m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.awt.headless=true",
		"-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", jars + "/*",
	}}
	k.settings = filepath.Join(k.dir.path, "server.properties")
	require.NoError(t, os.WriteFile(k.settings, []byte(k.properties(freePort(t))), 0o600))
	format := append(k.java[1:len(k.java):len(k.java)], "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", k.settings)
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	require.NoError(t, account.Run(ctx, k.dir.path, java, format...))
	k.Start(t)
	return k
}

func (k *KafkaServer) properties(controllerPort string) string {
	here, controller := "127.0.0.1:"+k.port, "127.0.0.1:"+controllerPort
	return strings.Join([]string{
		"process.roles=broker,controller", "node.id=1",
		"controller.quorum.voters=1@" + controller,
		"listeners=PLAINTEXT://" + here + ",CONTROLLER://" + controller,
		"advertised.listeners=PLAINTEXT://" + here,
		"inter.broker.listener.name=PLAINTEXT", "controller.listener.names=CONTROLLER",
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"log.dirs=" + filepath.Join(k.dir.path, "data"),
		"auto.create.topics.enable=false", // as in production
		"num.partitions=4", "default.replication.factor=1",
		"offsets.topic.replication.factor=1", "offsets.topic.num.partitions=1",
		"transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1", "transaction.state.log.num.partitions=1",
		"share.coordinator.state.topic.replication.factor=1", "share.coordinator.state.topic.min.isr=1", "share.coordinator.state.topic.num.partitions=1",
		"group.initial.rebalance.delay.ms=0", // 3 s for each new group otherwise
		"group.min.session.timeout.ms=1000",
		"num.network.threads=2", "num.io.threads=2", "log.cleaner.dedupe.buffer.size=2097152",
	}, "\n")
}

// Brokers is where it is to be reached.
func (k *KafkaServer) Brokers() []string { return []string{"127.0.0.1:" + k.port} }

// URL is the same, as a broker's URL.
func (k *KafkaServer) URL() string { return "kafka://127.0.0.1:" + k.port }

// Kill is kill -9.
func (k *KafkaServer) Kill(t testing.TB) {
	t.Helper()
	require.NoError(t, k.dir.process.End(syscall.SIGKILL, longest))
}

// Start starts it, also again on the data that it had when it was killed, and returns when it answers.
func (k *KafkaServer) Start(t testing.TB) {
	t.Helper()
	args := append(k.java[1:len(k.java):len(k.java)], "kafka.Kafka", k.settings)
	k.dir.start(t, k.port, k.java[0], args...)
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	for client.Ping(ctx) != nil {
		require.NoError(t, ctx.Err(), fmt.Sprint("Kafka does not answer\n", k.dir.log))
		time.Sleep(50 * time.Millisecond)
	}
}
