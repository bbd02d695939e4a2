package broker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-once/watermill-once/_examples/broker"
	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")) // sarama's, for the life of the program
}

// Brokers that need no server of their own. The others are tested, as these are, where their servers are started.
func TestGroups(t *testing.T) {
	t.Parallel()
	server, err := pgserver.Start(t.Context(), pgserver.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	for _, address := range []string{"gochannel://", server.URL("postgres"), "kafka://embedded?partitions=1"} {
		b, err := broker.Open(t.Context(), address, watermill.NopLogger{})
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		testGroups(t, b)
	}
}

// Each group gets every message, in order, and its two members share them.
func testGroups(t *testing.T, b *broker.Broker) {
	require.NoError(t, b.Create(t.Context(), "topic", "one", "two"))
	const n = 20
	type received struct{ group, uuid string }
	all := make(chan received, 10*n)
	for _, group := range []string{"one", "one", "two"} {
		subscriber, err := b.Subscriber(group)
		require.NoError(t, err)
		messages, err := subscriber.Subscribe(t.Context(), "topic")
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for msg := range messages {
				all <- received{group, msg.UUID}
				msg.Ack()
			}
		}()
		defer func() {
			require.NoError(t, subscriber.Close())
			<-done
		}()
	}
	for i := range n {
		require.NoError(t, b.Publisher.Publish("topic", message.NewMessage(fmt.Sprint("an id of any length, which is longer than a UUID: ", i), []byte{0, 255})))
	}
	got := map[string][]string{}
	for range 2 * n {
		select {
		case r := <-all:
			got[r.group] = append(got[r.group], r.uuid)
		case <-time.After(time.Minute):
			require.Fail(t, "messages are missing")
		}
	}
	require.Len(t, got["one"], n)
	require.ElementsMatch(t, got["one"], got["two"])
}
