package pathtest

import (
	"encoding/json"
	"testing"

	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// effect is what a handler has done for one event, as the tables and the records of outTopic have it.
type effect struct {
	Consumer string `json:"consumer"`
	EventID  string `json:"event_id"`
	Entity   string `json:"entity"`
	Version  int64  `json:"version"`
	N        int64  `json:"n"`
	UUID     string `json:"-"`
}

// uuidHeader is where watermill-kafka has the UUID of a message.
const uuidHeader = wkafka.UUIDHeaderKey

// key orders the messages that effects produce.
func (e effect) key() string { return e.Consumer + "/" + e.Entity }

// check looks for the invariants, once everything has settled.
func (w *world) check(t *testing.T) {
	t.Helper()
	effects := w.effects(t)

	// effects = distinct events
	newest := map[string]int64{}
	var everySent, everyApplied []string
	for _, e := range w.sent {
		newest[e.Entity] = max(newest[e.Entity], e.Version)
		everySent = append(everySent, e.ID)
	}
	seen := map[[2]string]bool{}
	for _, e := range effects {
		id := [2]string{e.Consumer, e.EventID}
		require.False(t, seen[id], "%v has had two effects", id)
		seen[id] = true
		if e.Consumer == "ledger" {
			everyApplied = append(everyApplied, e.EventID)
		}
	}
	require.ElementsMatch(t, everySent, everyApplied)

	// no entity goes backwards, and all get to their newest version
	state := map[string]int64{}
	for _, e := range effects {
		if e.Consumer == "state" {
			require.Greater(t, e.Version, state[e.Entity], "entity %s", e.Entity)
			state[e.Entity] = e.Version
		}
	}
	require.Equal(t, newest, state)

	// every committed message leaves the outbox at least once, in key order; nothing leaves that was not committed
	committed, left := map[string][]effect{}, map[string][]effect{}
	for _, e := range effects {
		committed[e.key()] = append(committed[e.key()], e)
	}
	for _, e := range w.firstCopies(t) {
		left[e.key()] = append(left[e.key()], e)
	}
	require.Equal(t, committed, left)
}

// effects are those of each key in the order of their commits.
func (w *world) effects(t *testing.T) []effect {
	t.Helper()
	rows, err := w.pool.Query(t.Context(), "select consumer, event_id, entity, version, n, uuid from effects order by consumer, entity, n")
	require.NoError(t, err)
	effects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[effect])
	require.NoError(t, err)
	return effects
}

// firstCopies reads outTopic and drops what a consumer of it would drop as duplicates.
func (w *world) firstCopies(t *testing.T) (first []effect) {
	t.Helper()
	if w.out != nil {
		return w.out.firstCopies(t, len(w.effects(t)))
	}
	seen := map[string]bool{}
	for _, record := range w.Read(t, w.prefix+outTopic) {
		var e effect
		require.NoError(t, json.Unmarshal(record.Value, &e))
		e.UUID = header(record, uuidHeader)
		require.Equal(t, e.key(), string(record.Key))
		if !seen[e.UUID] {
			seen[e.UUID] = true
			first = append(first, e)
		}
	}
	return first
}

func header(record *kgo.Record, key string) string {
	for _, h := range record.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}
