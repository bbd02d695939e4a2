package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/outbox"
)

// event says what an order is from now on. It is not a change to what it was.
type event struct {
	ID      string `json:"id"`
	Order   string `json:"order"`
	Version int64  `json:"version"`
	Status  string `json:"status"`
	Total   int64  `json:"total"` // in cents
}

var statuses = []string{"placed", "changed", "paid", "shipped", "returned"}

// feed is the history of some orders, and how it is delivered.
type feed struct {
	events     []event // each once, the oldest first
	deliveries []event
	overtaken  int // events whose first delivery comes after one of a newer version
}

func newFeed(n int, seed uint64) *feed {
	random := rand.New(rand.NewPCG(seed, 0))
	orders := max(1, n/50)
	versions := make([]int64, orders)
	f := &feed{}
	for i := range n {
		order := random.IntN(orders)
		versions[order]++
		f.events = append(f.events, event{
			ID:      fmt.Sprintf("evt-%04d", i+1),
			Order:   fmt.Sprintf("order-%02d", order+1),
			Version: versions[order],
			Status:  statuses[random.IntN(len(statuses))],
			Total:   random.Int64N(100_000),
		})
	}

	// Some twice, all of them somewhat out of order, and at the end the oldest ones again.
	for _, e := range f.events {
		f.deliveries = append(f.deliveries, e)
		if random.IntN(3) == 0 {
			f.deliveries = append(f.deliveries, e)
		}
	}
	for i := range f.deliveries {
		j := min(len(f.deliveries)-1, i+random.IntN(30))
		f.deliveries[i], f.deliveries[j] = f.deliveries[j], f.deliveries[i]
	}
	f.deliveries = append(f.deliveries, f.events[:(n+9)/10]...)

	seen, newest := map[string]bool{}, map[string]int64{}
	for _, e := range f.deliveries {
		if !seen[e.ID] && e.Version < newest[e.Order] {
			f.overtaken++
		}
		seen[e.ID] = true
		newest[e.Order] = max(newest[e.Order], e.Version)
	}
	return f
}

// send publishes all deliveries. The event's id is the message's UUID: each delivery of an event has the same.
func (f *feed) send(ctx context.Context, publisher message.Publisher, topic string) error {
	for _, e := range f.deliveries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		payload, err := json.Marshal(e)
		if err != nil {
			return err
		}
		msg := message.NewMessage(e.ID, payload)
		msg.Metadata.Set(outbox.PartitionKeyKey, e.Order)
		if err := publisher.Publish(topic, msg); err != nil {
			return fmt.Errorf("feed: %w", err)
		}
	}
	return nil
}

// state is what an order is, or its bill.
type state struct {
	status string
	total  int64
}

// expected is what the newest events say.
func (f *feed) expected() map[string]state {
	states := map[string]state{}
	for _, e := range f.events { // the versions of an order ascend
		states[e.Order] = state{e.Status, e.Total}
	}
	return states
}
