package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

// runRelay gives the error that Run returns by itself.
func runRelay(t *testing.T, pool *pgxpool.Pool, b message.Publisher, config outbox.RelayConfig) error {
	t.Helper()
	relay, err := outbox.NewRelay(pool, b, config, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = relay.Run(ctx)
	require.NoError(t, ctx.Err(), "the relay went on")
	return err
}

func TestRelaysMustAgreeOnTheNumberOfShards(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	stop := startRelay(t, pool, b, outbox.RelayConfig{Shards: 4})
	publish(t, pool, numbered(1, 1)...)
	b.wait(t, 1)
	err := runRelay(t, pool, newBroker(), outbox.RelayConfig{Shards: 5})
	require.ErrorIs(t, err, outbox.ErrShards)
	require.ErrorContains(t, err, "this one has 5, one at work has 4")
	startRelay(t, pool, b, outbox.RelayConfig{Shards: 4})
	startRelay(t, pool, b, outbox.RelayConfig{Shards: 7, Topic: "second"}) // another outbox has its own
	stop()
}

// One process, several relays on the same outbox and on others: nothing has a name that could clash.
func TestRelaysShareTheKeys(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	brokers := []*broker{newBroker(), newBroker(), newBroker()}
	stops := make([]func(), len(brokers))
	for i, b := range brokers {
		stops[i] = startRelay(t, pool, b, outbox.RelayConfig{BatchSize: 50})
	}
	eventually(t, "they share", func() bool { return slices.Equal(shares(t, pool), []int{5, 5, 6}) })
	send := func(count int) {
		publish(t, pool, numbered(count, 100)...)
		drained(t, pool)
	}
	send(1000)
	owner := make(map[string]int)
	total := 0
	for i, b := range brokers {
		require.NotEmpty(t, b.all())
		total += len(b.all())
		next := make(map[string]int)
		for _, s := range b.all() {
			if other, known := owner[s.key()]; known {
				require.Equal(t, other, i, "a key was sent by two")
			}
			owner[s.key()] = i
			n, _ := strconv.Atoi(s.Payload)
			require.Equal(t, n%100+100*next[s.key()], n)
			next[s.key()]++
		}
	}
	require.Equal(t, 1000, total, "settled relays send nothing twice")

	// When one leaves, the others take its keys over, and nothing is sent twice in an orderly hand-over.
	stops[1]()
	eventually(t, "two share", func() bool { return slices.Equal(shares(t, pool), []int{8, 8}) })
	before := len(brokers[1].all())
	send(500)
	require.Len(t, brokers[1].all(), before)
	require.Equal(t, 1500, len(brokers[0].all())+len(brokers[2].all())+before)

	// And when one comes while there is work.
	publish(t, pool, numbered(3000, 100)...)
	startRelay(t, pool, brokers[1], outbox.RelayConfig{BatchSize: 50})
	drained(t, pool)
	eventually(t, "three share again", func() bool { return slices.Equal(shares(t, pool), []int{5, 5, 6}) })
	require.Equal(t, 4500, len(brokers[0].all())+len(brokers[1].all())+len(brokers[2].all()))
}

func TestMoreRelaysThanShards(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	var stops []func()
	for range 3 {
		stops = append(stops, startRelay(t, pool, b, outbox.RelayConfig{Shards: 2}))
	}
	eventually(t, "two have one each", func() bool { return slices.Equal(shares(t, pool), []int{1, 1}) })
	for _, stop := range stops[:2] {
		stop()
		publish(t, pool, numbered(20, 10)...)
		drained(t, pool)
	}
	require.Len(t, b.all(), 40)
}

// Transactions, locks and relays of another database, or of another schema, are nobody's concern here.
func TestDatabasesAndSchemasDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	one, other := pgtest.PoolOn(t, url), newPool(t)
	_, err := one.Exec(t.Context(), `create schema apart; set search_path = apart; `+outbox.Config{}.Schema())
	require.NoError(t, err)
	one.Reset()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.ConnConfig.RuntimeParams["search_path"] = "apart"
	apart, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(apart.Close)

	writer := begin(t, other)
	_, err = writer.Exec(t.Context(), `select pg_current_xact_id()`)
	require.NoError(t, err)
	brokers := make(map[*pgxpool.Pool]*broker)
	for i, pool := range []*pgxpool.Pool{one, other, apart} {
		brokers[pool] = newBroker()
		startRelay(t, pool, brokers[pool], outbox.RelayConfig{Shards: 16 + i})
	}
	for pool, b := range brokers {
		publish(t, pool, numbered(100, 10)...)
		b.wait(t, 100)
		drained(t, pool)
		require.Len(t, b.all(), 100)
	}
}

func TestNotifyReachesRelaysOfOtherProcesses(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for _, topic := range []string{"outbox", "second"} {
		t.Run(topic, func(t *testing.T) {
			p := newPublisher(t, outbox.Config{Topic: topic})
			b := newBroker()
			startRelay(t, pool, b, outbox.RelayConfig{Topic: topic, PollInterval: time.Hour})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- p.Notify(ctx, pool) }()
			notified := func(n int) {
				handle(t, pool, nil, func(ctx context.Context) {
					require.NoError(t, p.PublishContext(ctx, "topic", newMessage("key", fmt.Sprint(n))))
				})
				b.wait(t, n)
			}
			// The first poll may have found this one.
			notified(1)
			eventually(t, "it listens", func() bool { return listeners(t, pool, topic, "pid") == 1 })
			notified(2)
			notified(3)
			// The connection is cut: what is missed meanwhile is found when it is back.
			require.Equal(t, 1, listeners(t, pool, topic, "pg_terminate_backend(pid)"))
			notified(4)
			eventually(t, "it listens again", func() bool { return listeners(t, pool, topic, "pid") == 1 })
			notified(5)
			cancel()
			require.NoError(t, <-done)
		})
	}
	require.Error(t, newPublisher(t, outbox.Config{}).Notify(t.Context(), nil))
}

// listeners counts the idle backends that listen, and does something with each.
func listeners(t *testing.T, pool *pgxpool.Pool, topic, do string) (n int) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `select count(`+do+`) from pg_stat_activity
		where datname = current_database() and state = 'idle' and query = 'listen "watermill_`+topic+`"'`).Scan(&n)
	require.NoError(t, err)
	return n
}

// A burst of commits is one notification or two.
func TestNotificationsCoalesce(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `listen "watermill_outbox"`)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Notify(ctx, pool) }()
	got := make(chan struct{})
	go func() {
		defer close(got)
		_, err := conn.Conn().WaitForNotification(t.Context())
		if err != nil {
			t.Error(err)
		}
	}()
	began := time.Now()
	for waiting := true; waiting; {
		p.Wake()
		select {
		case <-got:
			waiting = false
		default:
		}
	}
	for range 10_000 {
		p.Wake()
	}
	took := time.Since(began)
	cancel()
	require.NoError(t, <-done)
	_, err = conn.Exec(t.Context(), `select pg_notify('watermill_outbox', 'end')`)
	require.NoError(t, err)
	count := 0
	for {
		n, err := conn.Conn().WaitForNotification(t.Context())
		require.NoError(t, err)
		if n.Payload == "end" {
			break
		}
		count++
	}
	require.LessOrEqual(t, count, 3+int(took/(5*time.Millisecond)))
}

// What a writing transaction that stays open, and a snapshot, make of the relay's pace is measured elsewhere; here it is
// that both hold up nothing and lose nothing.
func TestALongTransactionHoldsUpNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{})
	long := begin(t, pool)
	require.NoError(t, p.PublishTx(t.Context(), long, "topic", newMessage("long", "long")))
	reader, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = reader.Rollback(context.Background()) }()
	_, err = reader.Exec(t.Context(), `select count(*) from watermill_outbox`)
	require.NoError(t, err)

	sends := 0
	for began := time.Now(); time.Since(began) < 2500*time.Millisecond; sends += 20 {
		publish(t, pool, numbered(20, 5)...)
		b.wait(t, sends+20)
	}
	require.NoError(t, long.Commit(t.Context()))
	require.Equal(t, "long", b.wait(t, sends+1)[sends].Payload)
	drained(t, pool)
	require.Len(t, b.all(), sends+1)
}

func TestTwentyThousandKeysInOneTransactionAreSent(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	const count = 20_000
	handle(t, pool, nil, func(ctx context.Context) {
		require.NoError(t, p.PublishContext(ctx, "topic", numbered(count, count)...))
	})
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{})
	b.wait(t, count)
	drained(t, pool)
	require.Len(t, b.all(), count)
}

func TestSentMessagesCanBeKept(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	refused := false
	b.refuse = func(string, *message.Message) error {
		if !refused {
			refused = true
			return errors.New("no")
		}
		return nil
	}
	publish(t, pool, numbered(100, 10)...)
	config := outbox.RelayConfig{KeepSent: true, BatchSize: 10, Concurrency: 1}
	unsent := func() (n int) {
		err := pool.QueryRow(t.Context(), `select count(*) from watermill_outbox where sent_at is null or next_attempt_at is not null`).Scan(&n)
		require.NoError(t, err)
		return n
	}
	stop := startRelay(t, pool, b, config)
	eventually(t, "all are marked", func() bool { return unsent() == 0 })
	stop()
	startRelay(t, pool, b, config)
	publish(t, pool, numbered(7, 7)...)
	eventually(t, "all are marked", func() bool { return unsent() == 0 })
	require.Len(t, b.all(), 107)
	require.Len(t, contents(t, pool, outbox.Config{}), 107)

	_, err := pool.Exec(t.Context(), `update watermill_outbox set sent_at = null, next_attempt_at = now() where "offset" in (3, 13, 107)`)
	require.NoError(t, err)
	b.wait(t, 110)
	eventually(t, "all are marked", func() bool { return unsent() == 0 })
	require.Len(t, b.all(), 110)
}

func TestMessagesLeaveWithTheirSequence(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	publish(t, pool, numbered(50, 5)...)
	rows := contents(t, pool, outbox.Config{})
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{})
	b.wait(t, 50)
	offsets := make(map[string]string)
	for _, row := range rows {
		offsets[row.UUID] = fmt.Sprint(row.Offset)
		require.NotContains(t, row.Metadata, outbox.SequenceKey)
	}
	for _, s := range b.all() {
		require.Equal(t, offsets[s.UUID], s.Metadata[outbox.SequenceKey])
	}
}
