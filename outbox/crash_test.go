package outbox_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

var errRollback = errors.New("rolled back")

func TestNothingIsLostWhenTheRelayIsKilled(t *testing.T) {
	t.Parallel()
	random := newRandom(t)
	const count, keys, batch = 300, 7, 10
	url := newDatabase(t)
	pool := pgtest.PoolOn(t, url)
	publish(t, pool, numbered(count, keys)...)
	q := newQueue(t)
	config := outbox.RelayConfig{BatchSize: batch}

	kills := 0
	for ; distinct(q.all()) < count/2; kills++ {
		relay := startProcess(t, url, q, config)
		after := len(q.all()) + 1 + random.IntN(3*batch)
		q.wait(t, "it has sent some", func(all []delivery) bool { return len(all) >= after })
		relay.kill()
	}
	startProcess(t, url, q, config)
	drained(t, pool)
	repeats := requireInOrder(t, q.all(), count, keys)
	require.LessOrEqual(t, repeats, kills*batch, "more than a batch was sent again")
}

// Three relays on sixteen shards, killed and started while messages are being written.
func TestOrderHoldsWhileRelaysAreKilled(t *testing.T) {
	t.Parallel()
	random := newRandom(t)
	const count, keys, relays = 20_000, 200, 3
	url := newDatabase(t)
	pool := pgtest.PoolOn(t, url)
	p := newPublisher(t, outbox.Config{})
	q := newQueue(t)
	msgs := numbered(count, keys)

	var writing sync.WaitGroup
	const writers = 4
	for w := range writers { // each with keys of its own, so that the order of the commits is known
		mine := make([]*message.Message, 0, count/writers)
		for i, msg := range msgs {
			if i%keys%writers == w {
				mine = append(mine, msg)
			}
		}
		writing.Go(func() {
			for len(mine) > 0 {
				n := min(1+rand.IntN(60), len(mine))
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					if err := p.PublishTx(t.Context(), tx, "topic", mine[:n]...); err != nil {
						return err
					}
					if rand.IntN(10) == 0 {
						return errRollback
					}
					return nil
				})
				switch {
				case err == nil:
					mine = mine[n:]
				case !errors.Is(err, errRollback):
					t.Error(err)
					return
				}
			}
		})
	}

	config := outbox.RelayConfig{Shards: 16, BatchSize: 200, PollInterval: 20 * time.Millisecond}
	processes := make([]*process, relays)
	for i := range processes {
		processes[i] = startProcess(t, url, q, config)
	}
	for kills := 0; distinct(q.all()) < count*9/10; kills++ {
		before := len(q.all())
		q.wait(t, "something is sent", func(all []delivery) bool { return len(all) > before+300+random.IntN(3000) || distinct(all) == count })
		victim := random.IntN(relays)
		processes[victim].kill()
		processes[victim] = startProcess(t, url, q, config)
	}
	writing.Wait()
	q.wait(t, "all is sent", func(all []delivery) bool { return distinct(all) == count })
	drained(t, pool)
	repeats := requireInOrder(t, q.all(), count, keys)
	t.Logf("%d repeats", repeats)
	pids := make(map[int]int)
	for _, d := range q.all() {
		pids[d.pid]++
	}
	require.Greater(t, len(pids), relays, "the relays that were killed had sent something: %v", pids)
}

// A relay that is stopped loses its shards, and knows it when it goes on.
func TestAFrozenRelayIsReplaced(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	pool := pgtest.PoolOn(t, url)
	q := newQueue(t)
	config := outbox.RelayConfig{BatchSize: 20, Concurrency: 2, PollInterval: 20 * time.Millisecond}
	frozen := startProcess(t, url, q, config)
	const count, keys = 400, 40
	q.mu.Lock()
	q.stuck = make(chan struct{})
	q.mu.Unlock()
	publish(t, pool, numbered(count, keys)...)
	// It has two messages with the broker, which has not answered yet, and more in memory.
	q.wait(t, "it has messages in hand", func(all []delivery) bool { return len(all) == 2 })
	frozen.signal(syscall.SIGSTOP)
	q.mu.Lock()
	stuck := q.stuck
	q.stuck = nil
	q.mu.Unlock()

	began := time.Now()
	startProcess(t, url, q, config)
	q.wait(t, "the other one has sent all", func(all []delivery) bool { return distinct(all) == count })
	require.Less(t, time.Since(began), 20*time.Second)
	drained(t, pool)
	close(stuck)
	frozen.signal(syscall.SIGCONT)
	eventually(t, "the relay that was frozen has its share again", func() bool {
		publish(t, pool, newMessage("", "later"), newMessage("", "later"), newMessage("", "later"))
		drained(t, pool)
		return slices.ContainsFunc(q.all(), func(d delivery) bool { return d.pid == frozen.pid() && d.payload == "later" })
	})
	before, byFrozen := q.all(), 0
	before = slices.DeleteFunc(slices.Clone(before), func(d delivery) bool { return d.payload == "later" })
	for _, d := range before {
		if d.pid == frozen.pid() {
			byFrozen++
		}
	}
	require.Equal(t, 2, byFrozen, "what it had in memory and not in hand, it must not send")
	requireInOrder(t, before, count, keys)
}

func TestShardsMoveWithinSeconds(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	pool := pgtest.PoolOn(t, url)
	q := newQueue(t)
	config := outbox.RelayConfig{}
	first := startProcess(t, url, q, config)
	eventually(t, "one relay has all shards", func() bool { return slices.Equal(shares(t, pool), []int{16}) })
	startProcess(t, url, q, config)
	third := startProcess(t, url, q, config)
	began := time.Now()
	eventually(t, "three share them", func() bool { return slices.Equal(shares(t, pool), []int{5, 5, 6}) })
	first.kill()
	eventually(t, "two share them", func() bool { return slices.Equal(shares(t, pool), []int{8, 8}) })
	third.kill()
	eventually(t, "one has them", func() bool { return slices.Equal(shares(t, pool), []int{16}) })
	require.Less(t, time.Since(began), 15*time.Second)
	publish(t, pool, numbered(100, 50)...)
	drained(t, pool)
	require.Len(t, q.all(), 100)
}

// shares gives how many shards each relay of the default outbox holds, in ascending order.
func shares(t *testing.T, db outbox.DB) []int {
	t.Helper()
	rows, err := db.Query(t.Context(), `select count(*)::integer from pg_locks
		where locktype = 'advisory' and mode = 'ExclusiveLock' and granted
		and database = (select oid from pg_database where datname = current_database())
		group by pid order by 1`)
	require.NoError(t, err)
	counts, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(t, err)
	return counts
}

// PostgreSQL ends without warning, and comes back, while messages are written and sent.
func TestPostgreSQLIsRestartedUnderLoad(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	url := server.URL("postgres")
	pool := pgtest.PoolOn(t, url)
	_, err := pool.Exec(t.Context(), outbox.Config{}.Schema())
	require.NoError(t, err)
	p := newPublisher(t, outbox.Config{})
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{BatchSize: 100, Wake: p})
	startRelay(t, pool, b, outbox.RelayConfig{BatchSize: 100, Wake: p})

	const keys = 20
	written, stop := make(chan int, 1), make(chan struct{})
	go func() {
		n := 0
		defer func() { written <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			msg := numbered(n+1, keys)[n]
			// Its number tells whether a COMMIT without an answer took place.
			err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
				return p.PublishTx(context.Background(), tx, "topic", msg)
			})
			if err == nil {
				n++
			} else if landed(pool, b, msg.UUID) {
				n++
			}
		}
	}()
	for range 3 {
		before := len(b.all())
		b.wait(t, before+100)
		require.NoError(t, server.Abort())
		require.NoError(t, server.Restart(t.Context()))
	}
	b.wait(t, len(b.all())+100)
	close(stop)
	count := <-written
	drained(t, pool)
	var all []delivery
	for _, s := range b.all() {
		all = append(all, delivery{key: s.key(), payload: s.Payload})
	}
	requireInOrder(t, all, count, keys)
}

// landed tells whether a message was committed, when PostgreSQL is back.
func landed(pool queryer, b *broker, uuid string) bool {
	for {
		var there bool
		err := pool.QueryRow(context.Background(), `select exists (select from watermill_outbox where uuid = $1)`, uuid).Scan(&there)
		if err == nil {
			return there || slices.ContainsFunc(b.all(), func(s sent) bool { return s.UUID == uuid })
		}
	}
}

type queryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}
