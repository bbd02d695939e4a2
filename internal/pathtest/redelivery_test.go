package pathtest

import (
	"errors"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	once "github.com/watermill-once/watermill-once/middleware"
)

func TestDuplicatesAndOldEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start(t, w.service())
	w.send(t, mixed(t, history("a", 10, 20))...)
	w.waitUntilSettled(t)
	w.check(t)
}

// A copy on another partition is handled at the same time as the first.
func TestDuplicatesSideBySide(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	random := seeded(t)
	for _, e := range history("a", 5, 20) {
		for range 3 {
			w.sendAs(t, e, strconv.Itoa(random.IntN(100)))
		}
	}
	start(t, w.service())
	w.waitUntilSettled(t)
	w.check(t)
}

// Every handler fails when its work is done: once by an error, once by a panic, and once beyond what Retry has patience for.
func TestFailuresAfterTheWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.service()
	var mu sync.Mutex
	attempts := map[string]int{}
	s.around = func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err != nil {
				return nil, err
			}
			key, _ := once.IdempotencyKey(msg.Context(), "attempts")
			mu.Lock()
			attempts[key]++
			n := attempts[key]
			mu.Unlock()
			switch {
			case n == 1:
				return nil, errors.New("failed")
			case n == 2:
				panic("panicked")
			case n < 8: // an outage, by which no message is poisoned
				return nil, net.ErrClosed
			}
			return produced, nil
		}
	}
	start(t, s)
	w.send(t, mixed(t, history("a", 3, 5))...)
	w.waitUntilSettled(t)
	w.check(t)
	require.Zero(t, w.Len(t, poisonTopic))
}

// No offset is ever committed, as where consumers die before: each start finds the whole topic again.
func TestRestartBeforeTheOffsetCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := history("a", 10, 10)
	callOff := w.RefuseCommits()
	for round := range 3 {
		w.send(t, events[:len(events)*(round+1)/3]...)
		handled := newTally()
		s := w.service()
		s.outcome = handled.add
		stop := start(t, s)
		handled.wait(t, len(consumers)*w.Len(t, eventsTopic)) // all of the topic, from its beginning
		stop()
	}
	callOff()
	start(t, w.service())
	w.waitUntilSettled(t)
	w.check(t)
}
