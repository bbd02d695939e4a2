package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/outbox"
)

// tally counts what its publisher has taken, and tells when that was all.
type tally struct {
	message.Publisher
	left atomic.Int64
	all  chan struct{}
}

func newTally(publisher message.Publisher, n int) *tally {
	t := &tally{Publisher: publisher, all: make(chan struct{})}
	t.left.Store(int64(n))
	return t
}

func (t *tally) Publish(topic string, messages ...*message.Message) error {
	err := t.Publisher.Publish(topic, messages...)
	if err == nil {
		t.taken(len(messages))
	}
	return err
}

// Close is for the one who has opened it: it serves more than one turn.
func (t *tally) Close() error { return nil }

func (t *tally) taken(n int) {
	if n > 0 && t.left.Add(int64(-n)) == 0 {
		close(t.all)
	}
}

// batchTally is a tally of a publisher that takes batches.
type batchTally struct {
	*tally
	batches outbox.BatchPublisher
}

func (t *batchTally) PublishBatch(ctx context.Context, batch []outbox.Outgoing) []error {
	errs := t.batches.PublishBatch(ctx, batch)
	n := 0
	for _, err := range errs {
		if err == nil {
			n++
		}
	}
	t.taken(n)
	return errs
}

// timed runs what fills a tally, from its start until the tally is full.
func (t *tally) timed(ctx context.Context, run func(ctx context.Context) error) (time.Duration, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	start := time.Now()
	go func() { ended <- run(ctx) }()
	select {
	case <-t.all:
	case err := <-ended:
		return 0, err
	}
	took := time.Since(start)
	stop()
	return took, <-ended
}
