package outbox

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
)

// observed is a broker that is told of each message before it has it.
type observed func(topic string, msg *message.Message) error

func (o observed) Publish(topic string, msgs ...*message.Message) error { return o(topic, msgs[0]) }
func (o observed) Close() error                                         { return nil }

// newOutbox gives a database with the default outbox.
func newOutbox(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return pgtest.PoolOn(t, pgtest.FromTemplate(t, "outbox-memory", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, Config{}.Schema())
		return err
	}))
}

// On a slow line a page of large messages takes longer than a statement may. The relay reads fewer, down to one.
func TestLargeMessagesOnASlowLine(t *testing.T) {
	t.Parallel()
	const messages, size, rate = 40, 1 << 20, 12 << 20
	for name, update := range map[string]string{
		"new":             "select 1",
		"to be retried":   "update watermill_outbox set attempts = 1, next_attempt_at = now()",
		"some of another": "update watermill_outbox set attempts = 1, next_attempt_at = now() where \"offset\" > 35",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newOutbox(t)
			_, err := pool.Exec(t.Context(), `insert into watermill_outbox (uuid, topic, key, payload)
				select i, 'topic', i, repeat('x', $2)::bytea from generate_series(1, $1::int) i`, messages, size)
			require.NoError(t, err)
			_, err = pool.Exec(t.Context(), update)
			require.NoError(t, err)
			config := pool.Config()
			config.ConnConfig.RuntimeParams["statement_timeout"] = "1s"
			dial := config.ConnConfig.DialFunc
			config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				return slowConn{conn, rate}, err
			}
			slow, err := pgxpool.NewWithConfig(t.Context(), config)
			require.NoError(t, err)
			t.Cleanup(slow.Close)

			var got atomic.Int64
			relay, err := NewRelay(slow, observed(func(string, *message.Message) error {
				got.Add(1)
				return nil
			}), RelayConfig{}, nil)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- relay.Run(ctx) }()
			require.Eventually(t, func() bool { return got.Load() >= messages }, time.Minute, 10*time.Millisecond)
			cancel()
			require.NoError(t, <-done)
		})
	}
}

// slowConn gives so many bytes a second.
type slowConn struct {
	net.Conn
	rate int
}

func (c slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(len(p), c.rate/100)])
	time.Sleep(time.Duration(n) * time.Second / time.Duration(c.rate))
	return n, err
}

// Of 150 messages of a megabyte, behind many small ones, what is in memory is what may wait and what the broker has.
func TestMemoryIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	const small, large, size, workers = 1500, 150, 1 << 20, 4
	for name, keys := range map[string]int{"of many keys": large, "of a few": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newOutbox(t)
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
