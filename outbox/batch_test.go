package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/outbox"
)

// batchBroker takes batches, as a sink that keeps the promise of BatchPublisher.
type batchBroker struct {
	*broker
	sizes  []int
	answer func(results []error) []error // may spoil the results
	during func()
	inUse  atomic.Int32
}

func (b *batchBroker) PublishBatch(_ context.Context, batch []outbox.Outgoing) []error {
	if b.inUse.Add(1) > 1 {
		panic("two batches at a time")
	}
	defer b.inUse.Add(-1)
	if b.during != nil {
		b.during()
	}
	b.sizes = append(b.sizes, len(batch))
	results := make([]error, len(batch))
	failed := make(map[string]bool)
	for i, out := range batch {
		if failed[out.Key] {
			results[i] = errors.New("behind another")
			continue
		}
		if results[i] = b.Publish(out.Topic, out.Message); results[i] != nil {
			failed[out.Key] = true
		}
	}
	if b.answer != nil {
		return b.answer(results)
	}
	return results
}

func TestABatchPublisherGetsBatches(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	publish(t, pool, numbered(1000, 7)...)
	b := &batchBroker{broker: newBroker()}
	startRelay(t, pool, b, outbox.RelayConfig{BatchSize: 100})
	for i, s := range b.wait(t, 1000) {
		require.Equal(t, fmt.Sprint(i), s.Payload, "in the order of the outbox")
	}
	drained(t, pool)
	require.Len(t, b.all(), 1000)
	require.LessOrEqual(t, len(b.sizes), 40)
}

func TestAMessageFailsInABatch(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := &batchBroker{broker: newBroker()}
	tries := make(map[string]int)
	b.refuse = func(_ string, msg *message.Message) error {
		tries[string(msg.Payload)]++
		n, _ := strconv.Atoi(string(msg.Payload))
		if n%17 == 3 && tries[string(msg.Payload)] <= 2 || n == 40 {
			return errors.New("no")
		}
		return nil
	}
	publish(t, pool, numbered(300, 10)...)
	startRelay(t, pool, b, outbox.RelayConfig{BatchSize: 60, MaxAttempts: 3})
	b.wait(t, 300-26)
	others := 0
	eventually(t, "40 is parked, as others are taken", func() bool {
		publish(t, pool, newMessage("other", "-1"))
		others++
		return len(parked(t, pool)) == 1
	})
	b.wait(t, 300-26+others)
	require.Equal(t, "40", string(parked(t, pool)[0].Payload))
	next := make(map[string]int)
	for _, s := range b.all() {
		if n, _ := strconv.Atoi(s.Payload); n >= 0 {
			require.Equal(t, n%10+10*next[s.key()], n)
			next[s.key()]++
		}
	}
	require.Equal(t, 4, next["key-0"])
	_, err := outbox.Config{}.DiscardParked(t.Context(), pool, parked(t, pool)[0].Offset)
	require.NoError(t, err)
	drained(t, pool)
	require.Len(t, b.all(), 299+others)
}

// Where results are missing, nobody knows what was taken: all of the batch is sent again.
func TestMissingResultsAreFailures(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func([]error) []error{
		"nil":   func([]error) []error { return nil },
		"short": func(results []error) []error { return results[1:] },
		"long":  func(results []error) []error { return append(results, nil) },
		"panic": func([]error) []error { panic("lost") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			b := &batchBroker{broker: newBroker()}
			spoiled := 0
			b.answer = func(results []error) []error {
				if spoiled++; spoiled == 1 {
					return spoil(results)
				}
				return results
			}
			publish(t, pool, numbered(10, 5)...)
			startRelay(t, pool, b, outbox.RelayConfig{})
			drained(t, pool)
			copies := make(map[string]int)
			for _, s := range b.all() {
				copies[s.Payload]++
			}
			for i := range 10 {
				require.Equal(t, 2, copies[fmt.Sprint(i)], "%d: %v", i, copies)
			}
		})
	}
}

// An error that panics is that of its message, and of no other.
func TestAnErrorOfABatchThatPanics(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := &batchBroker{broker: newBroker()}
	b.refuse = func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "bad" {
			var none *nilError
			return none
		}
		return nil
	}
	publish(t, pool, append(numbered(100, 10), newMessage("bad", "bad"))...)
	startRelay(t, pool, b, outbox.RelayConfig{MaxAttempts: 2})
	total := 100
	eventually(t, "it is parked", func() bool {
		publish(t, pool, newMessage("good", "good"))
		total++
		return len(parked(t, pool)) == 1
	})
	b.wait(t, total)
	eventually(t, "all others are gone", func() bool { return len(contents(t, pool, outbox.Config{})) == 1 })
	require.Len(t, b.all(), total)
	require.Contains(t, parked(t, pool)[0].LastError, "panicked")
}

func TestARowThatCannotBeReadIsLeftOutOfItsBatch(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	_, err := pool.Exec(t.Context(), `alter table watermill_outbox drop constraint watermill_outbox_metadata_check;
		insert into watermill_outbox (uuid, topic, key, metadata) values ('u', 't', 'bad', '[1]'), ('u2', 't', 'bad', '{}')`)
	require.NoError(t, err)
	publish(t, pool, numbered(5, 2)...)
	b := &batchBroker{broker: newBroker()}
	startRelay(t, pool, b, outbox.RelayConfig{})
	b.wait(t, 5)
	eventually(t, "it is parked", func() bool { return len(parked(t, pool)) == 1 })
	eventually(t, "the others are sent", func() bool { return len(contents(t, pool, outbox.Config{})) == 2 })
	require.Len(t, b.all(), 5)
}

func TestRelayIsStoppedInTheMiddleOfABatch(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	publish(t, pool, numbered(100, 10)...)
	b := &batchBroker{broker: newBroker()}
	inHand, goOn := make(chan struct{}, 1), make(chan struct{})
	b.during = func() {
		inHand <- struct{}{}
		<-goOn
	}
	relay, err := outbox.NewRelay(pool, b, outbox.RelayConfig{BatchSize: 20}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- relay.Run(ctx) }()
	<-inHand
	cancel()
	close(goOn)
	require.NoError(t, <-done)
	require.Len(t, b.all(), 10)
	require.Len(t, contents(t, pool, outbox.Config{}), 90, "what was taken is deleted")
	require.Equal(t, 0, advisoryLocks(t, pool))
}

func TestAStuckBatchIsLeftBehind(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	publish(t, pool, numbered(100, 10)...)
	b := &batchBroker{broker: newBroker()}
	inHand, goOn := make(chan struct{}, 10), make(chan struct{})
	b.during = func() {
		inHand <- struct{}{}
		<-goOn
	}
	relay, err := outbox.NewRelay(pool, b, outbox.RelayConfig{CloseTimeout: 20 * time.Millisecond}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- relay.Run(ctx) }()
	<-inHand
	cancel()
	require.ErrorIs(t, <-done, outbox.ErrCloseTimeout)
	require.Len(t, contents(t, pool, outbox.Config{}), 100)
	close(goOn)
	b.wait(t, 1)
}
