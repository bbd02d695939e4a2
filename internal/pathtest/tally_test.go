package pathtest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	once "github.com/watermill-once/watermill-once/middleware"
)

// tally counts the deliveries that were acked.
type tally struct {
	mu    sync.Mutex
	acked int
	kinds map[once.Kind]int
	more  chan struct{} // closed at each one, and replaced
}

func newTally() *tally {
	return &tally{kinds: map[once.Kind]int{}, more: make(chan struct{})}
}

func (c *tally) add(o once.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds[o.Kind]++
	if o.Kind == once.Failed {
		return
	}
	c.acked++
	close(c.more)
	c.more = make(chan struct{})
}

func (c *tally) number(kind once.Kind) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kinds[kind]
}

// wait returns when n deliveries were acked.
func (c *tally) wait(t *testing.T, n int) {
	t.Helper()
	c.waitUntil(t, func() bool { return c.acked >= n })
}

// waitFor returns when there were n of a kind.
func (c *tally) waitFor(t *testing.T, kind once.Kind, n int) {
	t.Helper()
	c.waitUntil(t, func() bool { return c.kinds[kind] >= n })
}

func (c *tally) waitUntil(t *testing.T, enough func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Longest)
	defer cancel()
	for {
		c.mu.Lock()
		reached, more, kinds := enough(), c.more, fmt.Sprint(c.kinds)
		c.mu.Unlock()
		if reached {
			return
		}
		select {
		case <-more:
		case <-ctx.Done():
			require.Fail(t, "not all were handled in time", "%s", kinds)
		}
	}
}
