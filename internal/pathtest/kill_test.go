package pathtest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Killed between the handler's work and COMMIT: nothing of it is there, and the next process does it all.
func TestKilledBeforeCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(t, event{"a.1", "a", 1})
	s := w.service()
	s.Consumers, s.Crash = []string{"ledger"}, crash{Point: afterWork}
	child := startChild(t, s)
	child.waitReached(t)
	child.kill()

	// The server rolls back what the process has left, when it finds the connection gone.
	w.waitFor(t, `
select count(*) = 0 from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'`)
	w.waitFor(t, `
select (select count(*) from effects) + (select count(*) from counters) + (select count(*) from watermill_processed_events)
  + (select count(*) from watermill_outbox) = 0`)
	require.Zero(t, w.Len(t, outTopic))

	start(t, w.service())
	w.waitUntilSettled(t)
	w.check(t)
}

// Killed after COMMIT and before the ack: all of it is there, and the next process finds the event handled.
func TestKilledAfterCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(t, event{"a.1", "a", 1})
	s := w.service()
	s.Consumers, s.Relay, s.Crash = []string{"ledger"}, false, crash{Point: afterCommit}
	child := startChild(t, s)
	child.waitReached(t)
	child.kill()
	require.Len(t, w.effects(t), 1)

	start(t, w.service())
	w.waitUntilSettled(t)
	w.check(t)
}

// The same in the middle of a topic, over and over.
func TestKilledAgainAndAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(t, mixed(t, history("a", 10, 20))...)
	for i := range 8 {
		s := w.service()
		s.Crash = crash{Point: []string{afterWork, afterCommit, beforeSend, afterSend}[i%4], After: 10}
		child := startChild(t, s)
		child.waitReached(t)
		child.kill()
	}
	start(t, w.service())
	w.waitUntilSettled(t)
	w.check(t)
}
