package servers_test

import (
	"net"
	"net/url"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-once/watermill-once/internal/pathtest/servers"
)

func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil { // where the jars are sought
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// A server takes connections while its test runs, and no longer.
func TestServersEndWithTheirTests(t *testing.T) {
	t.Parallel()
	for variable, start := range map[string]func(testing.TB) string{
		"NATS_URL": servers.NATS, "REDIS_URL": servers.Redis, "AMQP_URL": servers.RabbitMQ, "KAFKA_URL": servers.Kafka,
	} {
		t.Run(variable, func(t *testing.T) {
			t.Parallel()
			var address string
			t.Run("start", func(t *testing.T) {
				u, err := url.Parse(start(t))
				require.NoError(t, err)
				address = u.Host
				require.NoError(t, connect(address))
			})
			if address != "" && os.Getenv(variable) == "" {
				require.Error(t, connect(address))
			}
		})
	}
}

func connect(address string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

func TestKafkaIsKilledAndStartsAgain(t *testing.T) {
	t.Parallel()
	kafka := servers.StartKafka(t)
	kafka.Kill(t)
	require.Error(t, connect(kafka.Brokers()[0]))
	kafka.Start(t)
	require.NoError(t, connect(kafka.Brokers()[0]))
}
