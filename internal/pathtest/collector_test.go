package pathtest

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/_examples/broker"
	"github.com/watermill-once/watermill-once/outbox"
)

// collector acks and keeps what comes on a topic.
type collector struct {
	mu   sync.Mutex
	all  []*message.Message
	more chan struct{} // closed at each one, and replaced
}

func collect(t *testing.T, b *broker.Broker, group, topic string) *collector {
	t.Helper()
	subscriber, err := b.Subscriber(group)
	require.NoError(t, err)
	messages, err := subscriber.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	c := &collector{more: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for msg := range messages {
			c.mu.Lock()
			c.all = append(c.all, msg)
			close(c.more)
			c.more = make(chan struct{})
			c.mu.Unlock()
			msg.Ack()
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, subscriber.Close())
		<-done
	})
	return c
}

// wait returns the messages as soon as there are as many as enough asks for.
func (c *collector) wait(t *testing.T, enough func(all []*message.Message) bool) []*message.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Longest)
	defer cancel()
	for {
		c.mu.Lock()
		all, more := c.all[:len(c.all):len(c.all)], c.more
		c.mu.Unlock()
		if enough(all) {
			return all
		}
		select {
		case <-more:
		case <-ctx.Done():
			require.Fail(t, "messages are missing", "%d have come", len(all))
		}
	}
}

// firstCopies drops what a consumer would drop as duplicates.
func (c *collector) firstCopies(t *testing.T, n int) (first []effect) {
	t.Helper()
	distinct := func(all []*message.Message) map[string]bool {
		seen := map[string]bool{}
		for _, msg := range all {
			seen[msg.UUID] = true
		}
		return seen
	}
	all := c.wait(t, func(all []*message.Message) bool { return len(distinct(all)) >= n })
	seen := map[string]bool{}
	for _, msg := range all {
		var e effect
		require.NoError(t, json.Unmarshal(msg.Payload, &e))
		e.UUID = msg.UUID
		require.Equal(t, e.key(), msg.Metadata.Get(outbox.PartitionKeyKey))
		if !seen[e.UUID] {
			seen[e.UUID] = true
			first = append(first, e)
		}
	}
	return first
}
