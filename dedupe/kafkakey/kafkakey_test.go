package kafkakey_test

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/dedupe/kafkakey"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")) // sarama's, for the life of the process
}

// The whole way: a broker's records, watermill-kafka's Subscriber, a Router's handler.
func TestOffset(t *testing.T) {
	const topic = "payments.v1"
	broker := newBroker(t, topic, 7, "a", "b", "c")
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Version = sarama.V2_1_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers:               []string{broker.Addr()},
		Unmarshaler:           kafka.DefaultMarshaler{},
		OverwriteSaramaConfig: config,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	defer broker.Close() // after the subscriber

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	type result struct {
		id  string
		err error
	}
	results := make(chan result, 3)
	router.AddConsumerHandler("payments", topic, subscriber, func(msg *message.Message) error {
		id, err := dedupe.Config{Key: kafkakey.Offset}.EventID(msg)
		results <- result{id, err}
		return nil
	})
	done := make(chan error, 1)
	go func() { done <- router.Run(t.Context()) }()
	for _, want := range []string{"payments.v1/0/7", "payments.v1/0/8", "payments.v1/0/9"} {
		select {
		case got := <-results:
			require.NoError(t, got.err)
			require.Equal(t, want, got.id)
		case <-time.After(20 * time.Second):
			t.Fatal("nothing was received")
		}
	}
	require.NoError(t, router.Close())
	require.NoError(t, <-done)
}

// Without a place the key is missing, so that FirstOf goes on.
func TestOffsetIsMissing(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("u1", nil)
	_, err := kafkakey.Offset(msg)
	require.ErrorIs(t, err, dedupe.ErrMissingKey)
	require.ErrorContains(t, err, `"u1"`)
	id, err := dedupe.FirstOf(kafkakey.Offset, dedupe.MessageUUID)(msg)
	require.NoError(t, err)
	require.Equal(t, "u1", id)
}

// Straight from the Subscriber, without a Router, the topic is not known. Partition and offset alone are no key:
// every topic has them.
func TestOffsetWithoutARouter(t *testing.T) {
	const topic = "payments.v1"
	broker := newBroker(t, topic, 0, "a")
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Version = sarama.V2_1_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers:               []string{broker.Addr()},
		Unmarshaler:           kafka.DefaultMarshaler{},
		OverwriteSaramaConfig: config,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	defer broker.Close()
	messages, err := subscriber.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	select {
	case msg := <-messages:
		_, err := kafkakey.Offset(msg)
		require.ErrorIs(t, err, dedupe.ErrMissingKey)
		require.ErrorContains(t, err, "Router")
		msg.Ack()
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was received")
	}
	require.NoError(t, subscriber.Close())
}

// newBroker serves one partition of one topic.
func newBroker(t *testing.T, topic string, first int64, records ...string) *sarama.MockBroker {
	broker := sarama.NewMockBroker(t, 1)
	fetch := sarama.NewMockFetchResponse(t, len(records))
	for i, record := range records {
		fetch.SetMessage(topic, 0, first+int64(i), sarama.StringEncoder(record))
	}
	end := first + int64(len(records))
	fetch.SetHighWaterMark(topic, 0, end)
	broker.SetHandlerByMap(map[string]sarama.MockResponse{
		"ApiVersionsRequest": sarama.NewMockApiVersionsResponse(t),
		"MetadataRequest":    sarama.NewMockMetadataResponse(t).SetBroker(broker.Addr(), broker.BrokerID()).SetLeader(topic, 0, broker.BrokerID()),
		"OffsetRequest":      sarama.NewMockOffsetResponse(t).SetOffset(topic, 0, sarama.OffsetOldest, first).SetOffset(topic, 0, sarama.OffsetNewest, end),
		"FetchRequest":       fetch,
	})
	return broker
}

var _ dedupe.KeyFunc = kafkakey.Offset
