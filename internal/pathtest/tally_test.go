package pathtest

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	once "github.com/watermill-once/watermill-once/middleware"
)

// tally counts the deliveries that were acked.
type tally struct {
	mu    sync.Mutex
	acked int
	more  chan struct{} // closed at each one, and replaced
}

func newTally() *tally {
	return &tally{more: make(chan struct{})}
}

func (c *tally) add(o once.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.Kind == once.Failed {
		return
	}
	c.acked++
	close(c.more)
	c.more = make(chan struct{})
}

// wait returns when n deliveries were acked.
func (c *tally) wait(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Longest)
	defer cancel()
	for {
		c.mu.Lock()
		acked, more := c.acked, c.more
		c.mu.Unlock()
		if acked >= n {
			return
		}
		select {
		case <-more:
		case <-ctx.Done():
			require.Fail(t, "not all were handled in time", "%d of %d", acked, n)
		}
	}
}
