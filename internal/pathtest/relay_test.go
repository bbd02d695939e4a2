package pathtest

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Killed when the broker has the message and the outbox too, and when neither the broker has it nor anybody will know that it was
// about to: none is lost, and some are sent again.
func TestRelayKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.service()
	s.Relay = false
	start(t, s)
	w.send(t, history("a", 10, 20)...)
	w.waitForEffects(t, 2*200)

	relay := service{Brokers: w.Brokers(), URL: w.url, Relay: true}
	for i, after := range []int{0, 1, 30, 60, 5, 20} {
		relay.Crash = crash{Point: []string{afterSend, beforeSend}[i%2], After: after}
		child := startChild(t, relay)
		child.waitReached(t)
		child.kill()
	}
	require.Less(t, w.Len(t, outTopic), 2*200)

	relay.Crash = crash{}
	start(t, relay)
	w.waitUntilSettled(t)
	w.check(t)
	require.Greater(t, w.Len(t, outTopic), 2*200) // the test did see repeats
}

// A second relay waits, and takes over from one that was killed.
func TestRelayTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.service()
	s.Relay = false
	start(t, s)

	relay := service{Brokers: w.Brokers(), URL: w.url, Relay: true, Crash: crash{Point: afterSend, After: 50}}
	first := startChild(t, relay)
	w.send(t, history("a", 10, 10)...)
	first.waitReached(t)
	relay.Crash = crash{}
	start(t, relay)
	w.send(t, history("b", 10, 10)...)
	w.waitForEffects(t, 2*200)
	first.kill()
	w.waitUntilSettled(t)
	w.check(t)
}

// Now the broker refuses a message, now it takes one and the answer is lost. What comes after it has to wait for it, in its key.
func TestRelayOverABadBroker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.service()
	var sent atomic.Int64
	s.sending = func(publish func() error) error {
		switch sent.Add(1) % 5 {
		case 1:
			return errors.New("refused")
		case 3:
			return errors.Join(publish(), errors.New("the answer is lost"))
		default:
			return publish()
		}
	}
	start(t, s)
	w.send(t, history("a", 10, 10)...)
	w.waitUntilSettled(t)
	w.check(t)
	require.Greater(t, w.Len(t, outTopic), 2*100) // the test did see repeats
}
