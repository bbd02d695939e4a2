package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	once "github.com/watermill-once/watermill-once/middleware"
)

// tally counts what the services have done.
type tally struct {
	mu sync.Mutex
	of map[string]map[once.Kind]int // by consumer
}

// add fits once.Config.OnOutcome.
func (t *tally) add(_ context.Context, o once.Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]map[once.Kind]int{}
	}
	if t.of[o.Consumer] == nil {
		t.of[o.Consumer] = map[once.Kind]int{}
	}
	t.of[o.Consumer][o.Kind]++
}

func (t *tally) number(consumer string, kinds ...once.Kind) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, kind := range kinds {
		n += t.of[consumer][kind]
	}
	return n
}

// longest is how long all may take.
const longest = 2 * time.Minute

// settle waits until all deliveries are handled, and all that follows from them.
func (t *tally) settle(ctx context.Context, db *databases, f *feed, late *repeater) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	handled := func(consumer string) int { return t.number(consumer, once.Fresh, once.Duplicate, once.Stale) }
	for {
		if handled("orders") >= len(f.deliveries) {
			var unsent int
			if err := db.orders.QueryRow(ctx, "select count(*) from watermill_outbox").Scan(&unsent); err != nil {
				return fmt.Errorf("outbox: %w", err)
			}
			if messages, _ := late.numbers(); unsent == 0 && handled("billing") >= messages {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not all was handled: orders %d of %d, billing %d: %w",
				handled("orders"), len(f.deliveries), handled("billing"), context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
}
