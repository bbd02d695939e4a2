//go:build !race

package pathtest

// A file without the race detector, which "make test" runs once more for it: sarama's consumer races with itself when it connects to a
// broker again (Broker.Open against the metrics of Broker.Fetch).

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pathtest/servers"
	"github.com/watermill-once/watermill-once/outbox"
	"github.com/watermill-once/watermill-once/outbox/kafkasink"
)

// Kafka is killed under load, is away for a while, and comes back on its data. The consumers, the relay, and whoever sends the
// events go on by themselves. Nothing else runs meanwhile: it takes a while to start.
func TestKafkaKilledUnderLoad(t *testing.T) {
	server := servers.StartKafka(t)
	t.Run("relay by kafkasink", func(t *testing.T) { killedUnderLoad(t, server, true) })
	t.Run("relay by watermill", func(t *testing.T) { killedUnderLoad(t, server, false) })
	t.Run("sink", func(t *testing.T) { sinkOutlivesAKill(t, server) })
}

func killedUnderLoad(t *testing.T, server *servers.KafkaServer, bySink bool) {
	w := newBrokerWorld(t, server.URL()+"?session_timeout=2s")
	w.Kafka = Server(server.Brokers())
	s := w.service()
	if !bySink {
		s.Broker, s.Brokers = "", server.Brokers()
	}
	start(t, s)
	events := mixed(t, history("a", 12, 20))
	var sent atomic.Int64
	sending := make(chan error, 1)
	go func() { sending <- w.sendThroughOutages(events, &sent) }()
	for sent.Load() < int64(len(events)/3) {
		time.Sleep(time.Millisecond)
	}
	server.Kill(t)
	w.commitEffects(t, 20)
	w.waitFor(t, "select bool_or(last_error is not null) from watermill_outbox") // the relay has tried
	server.Start(t)
	require.NoError(t, <-sending)
	w.waitUntilAllAreIn(t)
	w.waitUntilSettled(t)
	w.check(t)
	w.requireNothingPoisoned(t)
}

// commitEffects commits some as a handler does, for the relay to send.
func (w *world) commitEffects(t *testing.T, n int) {
	t.Helper()
	publisher, err := outbox.NewPublisher(outbox.Config{})
	require.NoError(t, err)
	for i := range n {
		e := effect{Consumer: "other", EventID: fmt.Sprint("other.", i), Entity: "other", Version: int64(i + 1), N: int64(i + 1), UUID: fmt.Sprint("other.", i)}
		payload, err := json.Marshal(e)
		require.NoError(t, err)
		msg := message.NewMessage(e.UUID, payload)
		msg.Metadata.Set(outbox.PartitionKeyKey, e.key())
		tx, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), insertEffect, e.Consumer, e.EventID, e.Entity, e.Version, e.N, e.UUID)
		require.NoError(t, err)
		require.NoError(t, publisher.PublishTx(t.Context(), tx, w.prefix+outTopic, msg))
		require.NoError(t, tx.Commit(t.Context()))
	}
}

// sendThroughOutages sends each event until the broker has it.
func (w *world) sendThroughOutages(events []event, sent *atomic.Int64) error {
	deadline := time.Now().Add(Longest)
	for _, e := range events {
		w.sent[e.ID] = e
		for {
			msg := message.NewMessage(e.ID, fmt.Appendf(nil, `{"id":%q,"entity":%q,"version":%d}`, e.ID, e.Entity, e.Version))
			msg.Metadata.Set(outbox.PartitionKeyKey, e.Entity)
			err := w.publisher.Publish(w.prefix+eventsTopic, msg)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return errors.Join(errors.New("Kafka has not come back"), err)
			}
		}
		sent.Add(1)
	}
	return nil
}

// The sink goes on by itself when Kafka has been killed and started again, with nothing lost or out of order.
func sinkOutlivesAKill(t *testing.T, server *servers.KafkaServer) {
	kafka := Server(server.Brokers())
	kafka.Create(t, Partitions, nil, "topic")
	sink := newSink(t, kafka.Brokers(), kafkasink.Config{})
	n := 0
	send := func() error {
		var batch []outbox.Outgoing
		for key := range 20 {
			batch = append(batch, outgoing("topic", fmt.Sprint("key", key), n))
		}
		return errors.Join(sink.PublishBatch(t.Context(), batch)...)
	}
	deadline := time.Now().Add(Longest)
	for range 2 {
		require.NoError(t, send())
		n++
		server.Kill(t)
		require.Error(t, send())
		server.Start(t)
		for err := send(); err != nil; err = send() {
			require.True(t, time.Now().Before(deadline), "%v", err)
		}
		n++
	}
	checkOrder(t, kafka, []string{"topic"}, n)
}
