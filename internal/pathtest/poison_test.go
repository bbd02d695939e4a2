package pathtest

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What cannot be handled goes to the poison queue as it came, and holds nothing up.
func TestPoisonMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start(t, w.service())
	events := history("a", 5, 10)
	w.send(t, events[:20]...)
	for uuid, payload := range map[string]string{
		"no-json":    `{"id": "x", "entity": "a-1", `,
		"no-version": `{"id": "y", "entity": "a-1", "version": {}}`,
	} {
		msg := message.NewMessage(uuid, []byte(payload))
		msg.Metadata.Set("mine", "kept")
		require.NoError(t, w.publisher.Publish(eventsTopic, msg))
	}
	w.send(t, events[20:]...)
	w.waitUntilSettled(t)
	w.check(t)

	poisoned := map[[2]string]string{}
	for _, record := range w.Read(t, poisonTopic) {
		require.Equal(t, "kept", header(record, "mine"))
		require.NotEmpty(t, header(record, wmiddleware.ReasonForPoisonedKey))
		poisoned[[2]string{header(record, wmiddleware.PoisonedHandlerKey), header(record, uuidHeader)}] = string(record.Value)
	}
	require.Equal(t, map[[2]string]string{
		{"ledger", "no-json"}:    `{"id": "x", "entity": "a-1", `,
		{"state", "no-json"}:     `{"id": "x", "entity": "a-1", `,
		{"ledger", "no-version"}: `{"id": "y", "entity": "a-1", "version": {}}`,
		{"state", "no-version"}:  `{"id": "y", "entity": "a-1", "version": {}}`,
	}, poisoned)
}

// Records of other producers have no UUID. Where that is the event id they must not count as one event without a name, of which
// the first is handled and the others are taken for duplicates.
func TestRecordsWithoutUUID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start(t, w.service())
	w.send(t, history("a", 2, 5)...)
	var records []*kgo.Record
	for range 3 {
		records = append(records, &kgo.Record{Topic: eventsTopic, Key: []byte("b"), Value: []byte(`{"id":"b.1","entity":"b","version":1}`)})
	}
	w.Produce(t, records...)
	w.send(t, history("c", 2, 5)...)
	w.waitUntilSettled(t)
	w.check(t)
	require.GreaterOrEqual(t, w.Len(t, poisonTopic), 3*len(consumers), "each, and again where a rebalance had it delivered again")
}

// With a key that those records do have, they are events as all others.
func TestRecordsOfOtherProducers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.service()
	s.JSONKey = true
	start(t, s)
	w.send(t, history("a", 2, 5)...)
	for range 3 {
		w.Produce(t, &kgo.Record{Topic: eventsTopic, Key: []byte("b"), Value: []byte(`{"id":"b.1","entity":"b","version":1}`)})
	}
	w.sent["b.1"] = event{"b.1", "b", 1}
	w.waitUntilSettled(t)
	w.check(t)
	require.Zero(t, w.Len(t, poisonTopic))
}
