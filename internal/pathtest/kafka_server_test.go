package pathtest

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
	"github.com/watermill-once/watermill-once/outbox/kafkasink"
)

// onlyOnAServer is what an embedded Kafka cannot show, and what the sink's tests there have in common with a server, which makes no
// topics by itself. TestBrokers runs it.
func onlyOnAServer(t *testing.T, url string) {
	t.Helper()
	address, _, _ := strings.Cut(strings.TrimPrefix(url, "kafka://"), "?")
	kafka := Server(strings.Split(address, ","))
	newTopic := func(t *testing.T, partitions int32, settings map[string]*string) string {
		topic := "t" + strings.ToLower(rand.Text()[:8])
		kafka.Create(t, partitions, settings, topic)
		return topic
	}
	limit := "5000"
	limited := map[string]*string{"max.message.bytes": &limit}
	newWorld := func(t *testing.T) *world {
		w := newBrokerWorld(t, url)
		w.Kafka = kafka
		return w
	}
	for name, test := range map[string]func(t *testing.T){
		"sink and watermill":   func(t *testing.T) { sinkAndWatermill(t, kafka, newTopic(t, Partitions, nil)) },
		"sink compresses":      func(t *testing.T) { sinkCompresses(t, kafka, newTopic(t, Partitions, nil)) },
		"sink and a limit":     func(t *testing.T) { sinkOverATopicWithALimit(t, kafka, newTopic(t, 1, limited)) },
		"sink without a topic": func(t *testing.T) { sinkWithoutATopic(t, kafka, newTopic(t, Partitions, nil)) },

		"too large, by the sink": func(t *testing.T) {
			parksWhatIsTooLarge(t, kafka, newTopic(t, 1, limited), newSink(t, kafka.Brokers(), kafkasink.Config{}))
		},
		"too large, by watermill": func(t *testing.T) {
			publisher, err := NewPublisher(kafka.Brokers(), watermill.NopLogger{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, publisher.Close()) })
			parksWhatIsTooLarge(t, kafka, newTopic(t, 1, limited), publisher)
		},

		"rebalances":        func(t *testing.T) { twelvePartitionsChangeHands(t, newWorld(t)) },
		"committed offsets": func(t *testing.T) { goesOnFromCommittedOffsets(t, newWorld(t)) },
		"other producers":   func(t *testing.T) { recordsOfNoWatermill(t, newWorld(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// Two services join and leave while events come, on 12 partitions.
func twelvePartitionsChangeHands(t *testing.T, w *world) {
	events := mixed(t, history("a", 24, 12))
	third := len(events) / 3
	group := w.prefix + "ledger"
	stopFirst := start(t, w.service())
	w.send(t, events[:third/2]...)
	stopSecond := start(t, w.service())
	w.send(t, events[third/2:third]...)
	w.WaitMembers(t, group, 2)
	w.send(t, events[third:third+third/2]...)
	stopFirst()
	w.send(t, events[third+third/2:2*third]...)
	start(t, w.service())
	w.send(t, events[2*third:]...)
	w.WaitMembers(t, group, 2)
	stopSecond()
	w.waitUntilSettled(t)
	w.waitUntilAllAreIn(t)
	w.check(t)
}

// A group that has committed all it had gets none of it again.
func goesOnFromCommittedOffsets(t *testing.T, w *world) {
	events := history("a", 12, 4)
	stop := start(t, w.service())
	w.send(t, events[:24]...)
	w.waitUntilAllAreIn(t)
	w.waitUntilSettled(t)
	stop()
	w.send(t, events[24:]...)
	s, handled := w.tallied()
	start(t, s)
	w.waitUntilAllAreIn(t)
	w.waitUntilSettled(t)
	w.check(t)
	handled.waitFor(t, once.Fresh, 24*len(consumers))
	require.Zero(t, handled.number(once.Duplicate))
}

// Records of another client have no UUID; their event id is in the payload. A tombstone has no payload and is no event.
func recordsOfNoWatermill(t *testing.T, w *world) {
	s := w.service()
	s.JSONKey = true
	start(t, s)
	w.send(t, history("a", 2, 5)...)
	topic := w.prefix + eventsTopic
	for range 3 {
		w.Produce(t,
			&kgo.Record{Topic: topic, Key: []byte("b"), Value: []byte(`{"id":"b.1","entity":"b","version":1}`), Headers: []kgo.RecordHeader{{Key: "binary", Value: []byte{0, 255}}}},
			&kgo.Record{Topic: topic, Key: []byte("b"), Value: nil},
		)
	}
	w.sent["b.1"] = event{"b.1", "b", 1}
	w.waitUntilAllAreIn(t)
	w.waitUntilSettled(t)
	w.check(t)
	tombstones := w.poisoned.wait(t, func(all []*message.Message) bool { return len(all) >= 3*len(consumers) })
	for _, msg := range tombstones {
		require.Empty(t, msg.Payload)
	}
}

// A record larger than the topic takes is parked, with the broker's reason; other keys go on.
func parksWhatIsTooLarge(t *testing.T, kafka *Kafka, topic string, to message.Publisher) {
	w := &world{}
	w.openDatabase(t)
	publisher, err := outbox.NewPublisher(outbox.Config{})
	require.NoError(t, err)
	publish := func(keys ...string) {
		tx, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		for _, key := range keys {
			msg := message.NewMessage(key, []byte(`{}`))
			if key == "large" {
				msg.Payload = []byte(strings.Repeat("x", 20_000))
			}
			msg.Metadata.Set(outbox.PartitionKeyKey, key)
			require.NoError(t, publisher.PublishTx(t.Context(), tx, topic, msg))
		}
		require.NoError(t, tx.Commit(t.Context()))
	}
	publish("small", "large", "other")
	relay, err := outbox.NewRelay(w.pool, to, outbox.RelayConfig{MaxAttempts: 2, PollInterval: 10 * time.Millisecond}, watermill.NopLogger{})
	require.NoError(t, err)
	start := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		return func() {
			cancel()
			require.NoError(t, <-ended)
		}
	}
	defer start()()
	// While nothing else is sent it might be an outage, unless the broker's error says that it is permanent.
	others := 2
	for parked, ends := false, time.Now().Add(Longest); ; others++ {
		w.waitFor(t, "select count(*) = 1 from watermill_outbox")
		require.NoError(t, w.pool.QueryRow(t.Context(), "select parked_at is not null from watermill_outbox").Scan(&parked))
		if parked {
			break
		}
		require.True(t, time.Now().Before(ends), "not parked beside %d others", others)
		publish("other")
	}
	var uuid, reason string
	require.NoError(t, w.pool.QueryRow(t.Context(), "select uuid, last_error from watermill_outbox").Scan(&uuid, &reason))
	require.Equal(t, "large", uuid)
	require.Contains(t, reason, "too large")
	require.Equal(t, others, kafka.Len(t, topic))
}
