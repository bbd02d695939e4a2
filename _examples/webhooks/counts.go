package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	once "github.com/watermill-once/watermill-once/middleware"
)

// counts is what the consumers have done so far.
type counts struct {
	mu       sync.Mutex
	of       map[string]map[once.Kind]int // by consumer
	last     map[string]once.Kind         // by consumer
	inPoison int
	changed  chan struct{} // closed, and a new one made, with each change
}

func newCounts() *counts {
	return &counts{of: map[string]map[once.Kind]int{}, last: map[string]once.Kind{}, changed: make(chan struct{})}
}

// add fits Config.OnOutcome.
func (c *counts) add(_ context.Context, o once.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[o.Consumer] == nil {
		c.of[o.Consumer] = map[once.Kind]int{}
	}
	c.of[o.Consumer][o.Kind]++
	c.last[o.Consumer] = o.Kind
	c.signal()
}

// addPoisoned is the handler of the poison queue.
func (c *counts) addPoisoned(*message.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inPoison++
	c.signal()
	return nil
}

func (c *counts) signal() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// number of outcomes that a consumer has had, of the given kinds.
func (c *counts) number(consumer string, kinds ...once.Kind) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, kind := range kinds {
		n += c.of[consumer][kind]
	}
	return n
}

// latest is how a consumer's last delivery ended.
func (c *counts) latest(consumer string) once.Kind {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last[consumer]
}

// handled is how many deliveries a consumer is done with.
func (c *counts) handled(consumer string) int {
	return c.number(consumer, once.Fresh, once.Stale, once.Duplicate)
}

// poisoned is how many messages went to the poison queue.
func (c *counts) poisoned() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inPoison
}

// longest is how long nothing at all may happen before a wait is given up.
const longest = 30 * time.Second

// wait returns when reached is true.
func (c *counts) wait(ctx context.Context, reached func() bool) error {
	for {
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		if reached() {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		case <-time.After(longest):
			return fmt.Errorf("no outcome for %v", longest)
		}
	}
}
