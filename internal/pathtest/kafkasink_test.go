package pathtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watermill-once/watermill-once/outbox"
	"github.com/watermill-once/watermill-once/outbox/kafkasink"
)

func newSink(t *testing.T, brokers []string, config kafkasink.Config) *kafkasink.Sink {
	t.Helper()
	if config.Sarama == nil {
		config.Sarama = kafkasink.PublisherConfig()
	}
	config.Sarama.Producer.Retry.Backoff = 10 * time.Millisecond
	sink, err := kafkasink.New(brokers, config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sink.Close()) })
	return sink
}

func outgoing(topic, key string, n int) outbox.Outgoing {
	msg := message.NewMessage(fmt.Sprintf("%s.%d", key, n), fmt.Appendf(nil, `{"n":%d}`, n))
	msg.Metadata.Set(outbox.PartitionKeyKey, key)
	return outbox.Outgoing{Topic: topic, Key: key, Message: msg}
}

// What the sink writes, watermill-kafka's Subscriber reads as if its own Publisher had written it, and the two put a key into
// the same partition. Each with the settings that package kafkasink gives.
func TestSinkAndWatermill(t *testing.T) {
	t.Parallel()
	sinkAndWatermill(t, StartKafka(t, "topic"), "topic")
}

func sinkAndWatermill(t *testing.T, kafka *Kafka, topic string) {
	sink := newSink(t, kafka.Brokers(), kafkasink.Config{})
	stock := newStock(t, kafka.Brokers())

	var batch []outbox.Outgoing
	sent := map[string]*message.Message{}
	for n := range 20 {
		for _, by := range []string{"sink", "stock", "sink's Publish"} {
			out := outgoing(topic, fmt.Sprint("key ", n), 0)
			out.Message.UUID = by + fmt.Sprint(n)
			out.Message.Metadata.Set("Ünicode", "ключ\n")
			out.Message.Metadata.Set("empty", "")
			sent[out.Message.UUID] = out.Message
			switch by {
			case "sink":
				batch = append(batch, out)
			case "stock":
				require.NoError(t, stock.Publish(topic, out.Message))
			default:
				require.NoError(t, sink.Publish(topic, out.Message))
			}
		}
	}
	require.NoError(t, errors.Join(sink.PublishBatch(t.Context(), batch)...))

	config := kafkasink.SubscriberConfig()
	config.Net.ReadTimeout = 5 * time.Second
	subscriber, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers: kafka.Brokers(), ConsumerGroup: topic + "-group", OverwriteSaramaConfig: config,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	defer func() { require.NoError(t, subscriber.Close()) }()
	messages, err := subscriber.Subscribe(t.Context(), topic) // a new group, begun after all was sent
	require.NoError(t, err)
	partitions := map[string]int32{}
	for range sent {
		select {
		case msg := <-messages:
			require.Contains(t, sent, msg.UUID)
			require.True(t, sent[msg.UUID].Equals(msg), "%v", msg)
			partition, _ := wkafka.MessagePartitionFromCtx(msg.Context())
			key := msg.Metadata.Get(outbox.PartitionKeyKey)
			if known, ok := partitions[key]; ok {
				require.Equal(t, known, partition, "%s", key)
			}
			partitions[key] = partition
			recordKey, _ := wkafka.MessageKeyFromCtx(msg.Context())
			require.Equal(t, key, string(recordKey))
			at, _ := wkafka.MessageTimestampFromCtx(msg.Context())
			require.WithinDuration(t, time.Now(), at, time.Minute)
			msg.Ack()
		case <-time.After(Longest):
			require.Fail(t, "messages are missing")
		}
	}
	require.Len(t, partitions, 20)
}

func TestSinkCompresses(t *testing.T) {
	t.Parallel()
	sinkCompresses(t, StartKafka(t, "topic"), "topic")
}

func sinkCompresses(t *testing.T, kafka *Kafka, topic string) {
	for _, codec := range []sarama.CompressionCodec{sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD} {
		config := kafkasink.PublisherConfig()
		config.Producer.Compression = codec
		sink := newSink(t, kafka.Brokers(), kafkasink.Config{Sarama: config})
		var batch []outbox.Outgoing
		for n := range 100 {
			batch = append(batch, outgoing(topic, codec.String(), n))
		}
		require.NoError(t, errors.Join(sink.PublishBatch(t.Context(), batch)...))
	}
	checkOrder(t, kafka, []string{topic}, 100)
}

// A relay's loop, over a Kafka of three brokers that refuses, falls silent, loses answers, moves partitions and forgets its
// producers. Nothing is lost, and each key is in order.
func TestSinkOverABadKafka(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	const keys, perKey = 40, 50
	topics := []string{"a", "b"}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(Partitions, topics...), kfake.AllowAutoTopicCreation())
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	kafka := embedded(cluster)

	config := kafkasink.PublisherConfig()
	config.Net.ReadTimeout = 2 * time.Second
	config.Producer.Retry.Max = 2 // some trouble is meant to outlast it
	sink := newSink(t, kafka.Brokers(), kafkasink.Config{Sarama: config})

	troubles := 150
	fault := func() {
		codes := []*kerr.Error{
			kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut, kerr.UnknownServerError,
			kerr.MessageTooLarge, kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.TopicAuthorizationFailed, kerr.KafkaStorageError,
		}
		cluster.Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.Produce}, Err: codes[random.IntN(len(codes))], Count: 1 + random.IntN(5),
			Topic: topics[random.IntN(len(topics))], Partitions: []int32{int32(random.IntN(Partitions))},
		})
	}
	trouble := func() {
		switch random.IntN(5) {
		case 0:
			cluster.ShufflePartitionLeaders()
		case 1: // the connection is cut before the request is read
			cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) { return nil, io.EOF, true })
		case 2:
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: kerr.CoordinatorLoadInProgress})
		default:
			fault()
		}
	}

	var open []outbox.Outgoing
	for n := range perKey {
		for key := range keys {
			open = append(open, outgoing(topics[random.IntN(len(topics))], fmt.Sprint("key", key), n))
		}
	}
	seen := map[string]int{}
	deadline := time.Now().Add(Longest)
	for len(open) > 0 {
		require.True(t, time.Now().Before(deadline), "%d are open, %v", len(open), seen)
		if troubles > 0 {
			troubles--
			trouble()
		}
		n := min(len(open), 1+random.IntN(60))
		var rest []outbox.Outgoing
		for i, err := range sink.PublishBatch(t.Context(), open[:n]) {
			if err != nil {
				rest = append(rest, open[i])
				cause := err
				for errors.Unwrap(cause) != nil {
					cause = errors.Unwrap(cause)
				}
				seen[cause.Error()]++
			}
		}
		open = append(rest, open[n:]...)
	}
	t.Logf("%v", seen)
	require.NotEmpty(t, seen, "the test did see failures")
	checkOrder(t, kafka, topics, perKey)
}

// The topic takes less than the sink thinks: the batches are divided, and only what is too large by itself is refused.
func TestSinkOverATopicWithALimit(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "topic"), kfake.BrokerConfigs(map[string]string{"message.max.bytes": "5000"}))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	sinkOverATopicWithALimit(t, embedded(cluster), "topic")
}

// The topic takes 5,000 bytes at a time, and has one partition.
func sinkOverATopicWithALimit(t *testing.T, kafka *Kafka, topic string) {
	sink := newSink(t, kafka.Brokers(), kafkasink.Config{})
	var batch []outbox.Outgoing
	for n := range 300 {
		batch = append(batch, outgoing(topic, fmt.Sprint("key", n%100), n/100))
	}
	batch[150].Message.Metadata.Set("large", strings.Repeat("x", 6000)) // key50.1
	for i, err := range sink.PublishBatch(t.Context(), batch) {
		switch i {
		case 150:
			require.ErrorIs(t, err, sarama.ErrMessageSizeTooLarge)
			var permanent interface{ Permanent() bool }
			require.True(t, errors.As(err, &permanent) && permanent.Permanent())
		case 250:
			require.ErrorIs(t, err, kafkasink.ErrHeldBack)
		default:
			require.NoError(t, err)
		}
	}
	require.Equal(t, 298, kafka.Len(t, topic))
}

// Kafka is not there when the sink is made, comes, goes, and comes back: the sink goes on by itself.
func TestSinkOutlivesKafka(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := listener.Addr().(*net.TCPAddr).Port
	require.NoError(t, listener.Close())
	sink := newSink(t, []string{fmt.Sprintf("127.0.0.1:%d", port)}, kafkasink.Config{})
	start := func() *kfake.Cluster {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port), kfake.SeedTopics(Partitions, "topic"))
		require.NoError(t, err)
		return cluster
	}
	n := 0
	send := func() error {
		n++
		return sink.PublishBatch(t.Context(), []outbox.Outgoing{outgoing("topic", "key", n)})[0]
	}
	require.Error(t, send())
	for range 3 {
		cluster := start()
		require.NoError(t, send())
		require.NoError(t, send())
		require.Equal(t, 2, embedded(cluster).Len(t, "topic"))
		cluster.Close()
		require.Error(t, send())
	}
}

// Partitions move between brokers: nobody notices, and nothing is stored twice.
func TestSinkFollowsLeaders(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(Partitions, "topic"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	kafka := embedded(cluster)
	sink := newSink(t, kafka.Brokers(), kafkasink.Config{})
	const rounds, keys = 10, 20
	for n := range rounds {
		var batch []outbox.Outgoing
		for key := range keys {
			batch = append(batch, outgoing("topic", fmt.Sprint("key", key), n))
		}
		require.NoError(t, errors.Join(sink.PublishBatch(t.Context(), batch)...))
		cluster.ShufflePartitionLeaders()
	}
	require.Equal(t, rounds*keys, kafka.Len(t, "topic"))
	checkOrder(t, kafka, []string{"topic"}, rounds)
}

// A request is never answered. The caller need not wait; the sink does, and goes on with what is next.
func TestSinkOverAFrozenKafka(t *testing.T) {
	t.Parallel()
	kafka := StartKafka(t, "topic")
	config := kafkasink.PublisherConfig()
	config.Net.ReadTimeout = time.Second
	sink := newSink(t, kafka.Brokers(), kafkasink.Config{Sarama: config})
	frozen := make(chan struct{})
	kafka.Cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(frozen)
		return nil, nil, true
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-frozen
		cancel()
	}()
	start := time.Now()
	err := sink.PublishBatch(ctx, []outbox.Outgoing{outgoing("topic", "key", 0)})[0]
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, time.Since(start), config.Net.ReadTimeout)
	require.NoError(t, sink.PublishBatch(t.Context(), []outbox.Outgoing{outgoing("topic", "key", 1)})[0])
	require.GreaterOrEqual(t, time.Since(start), config.Net.ReadTimeout) // it was not overtaken
}

// One topic is missing, and then made: it holds up nothing else.
func TestSinkWithoutATopic(t *testing.T) {
	t.Parallel()
	sinkWithoutATopic(t, StartKafka(t, "topic"), "topic")
}

func sinkWithoutATopic(t *testing.T, kafka *Kafka, topic string) {
	missing := topic + "-missing"
	sink := newSink(t, kafka.Brokers(), kafkasink.Config{})
	send := func() []error {
		return sink.PublishBatch(t.Context(), []outbox.Outgoing{outgoing(topic, "a", 0), outgoing(missing, "b", 0), outgoing(topic, "b", 1)})
	}
	for range 2 {
		errs := send()
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], sarama.ErrUnknownTopicOrPartition)
		require.ErrorIs(t, errs[2], kafkasink.ErrHeldBack)
	}
	kafka.Create(t, 1, nil, missing)
	require.NoError(t, errors.Join(send()...))
	require.Equal(t, 1, kafka.Len(t, missing))
}

// checkOrder looks at each partition: the messages of a key come in their order, repeats dropped, and over all topics none is
// missing.
func checkOrder(t *testing.T, kafka *Kafka, topics []string, perKey int) {
	t.Helper()
	all := map[string]map[int]bool{}
	for _, topic := range topics {
		last := map[string]int{}
		for _, r := range kafka.Read(t, topic) {
			var n int
			_, err := fmt.Sscanf(string(r.Value), `{"n":%d}`, &n)
			require.NoError(t, err)
			key := string(r.Key)
			if all[key] == nil {
				all[key] = map[int]bool{}
			}
			if all[key][n] {
				continue
			}
			all[key][n] = true
			if before, ok := last[key]; ok {
				require.Greater(t, n, before, "%s in %s", key, topic)
			}
			last[key] = n
		}
	}
	for key, numbers := range all {
		require.Len(t, numbers, perKey, key)
	}
}
