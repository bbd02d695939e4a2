package outbox

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
)

// observed is a broker that is told of each message before it has it.
type observed func(topic string, msg *message.Message) error

func (o observed) Publish(topic string, msgs ...*message.Message) error { return o(topic, msgs[0]) }
func (o observed) Close() error                                         { return nil }

// Of 150 messages of a megabyte, behind many small ones, what is in memory is what may wait and what the broker has.
func TestMemoryIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	const small, large, size, workers = 1500, 150, 1 << 20, 4
	for name, keys := range map[string]int{"of many keys": large, "of a few": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := pgtest.FromTemplate(t, "outbox-memory", func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, Config{}.Schema())
				return err
			})
			pool := pgtest.PoolOn(t, address)
			_, err := pool.Exec(t.Context(), `insert into watermill_outbox (uuid, topic, key, payload)
				select i, 'topic', i % $4::int, repeat('x', case when i < $1::int then 1 else $3::int end)::bytea from generate_series(0, $1::int + $2::int - 1) i`,
				small, large, size, keys)
			require.NoError(t, err)

			var d *delivery
			var got, most atomic.Int64
			all := make(chan struct{})
			relay, err := NewRelay(pool, observed(func(_ string, msg *message.Message) error {
				if got.Add(1) == small+large {
					close(all)
				}
				if len(msg.Payload) < size {
					return nil
				}
				d.mu.Lock()
				held := int64(0)
				for _, row := range d.lanes.known {
					held += int64(len(row.payload))
				}
				d.mu.Unlock()
				most.Store(max(most.Load(), held))
				time.Sleep(20 * time.Millisecond) // it is slow
				return nil
			}), RelayConfig{Concurrency: workers}, nil)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			work, release := outlive(ctx, time.Minute)
			defer release()
			s, err := openSession(ctx, pool, relay.config)
			require.NoError(t, err)
			defer s.close(work)
			entered, err := s.enter(ctx, "outbox")
			require.NoError(t, err)
			require.True(t, entered)
			d = newDelivery(ctx, work, relay, newBell().rung)
			done := make(chan error, 1)
			go func() { done <- d.run(ctx, work, s) }()
			select {
			case <-all:
			case <-time.After(time.Minute):
				require.FailNow(t, "the broker got too few messages", "%d", got.Load())
			}
			cancel()
			require.NoError(t, <-done)
			require.EqualValues(t, small+large, got.Load())
			require.LessOrEqual(t, most.Load(), int64(memoryBytes+(1+workers)*size))
			require.Zero(t, d.lanes.bytes)
		})
	}
}

func TestNothingIsReadWhenMemoryIsFull(t *testing.T) {
	t.Parallel()
	config := RelayConfig{}
	config.setDefaults()
	d := newDelivery(t.Context(), t.Context(), &Relay{config: config}, nil)
	d.begin()
	d.shards[0] = false
	d.lanes.admit(&pending{offset: 1, key: "1", payload: make([]byte, memoryBytes-1)})
	require.True(t, d.mayFetch())
	d.lanes.admit(&pending{offset: 2, key: "2", payload: make([]byte, 1)})
	require.False(t, d.mayFetch())
}
