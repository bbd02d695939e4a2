package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

func publish(t testing.TB, pool *pgxpool.Pool, msgs ...*message.Message) {
	t.Helper()
	inTx(t, pool, func(tx pgx.Tx) {
		require.NoError(t, newPublisher(t, outbox.Config{}).PublishTx(t.Context(), tx, "it's a {topic}", msgs...))
	})
}

func drained(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	eventually(t, "the outbox is empty", func() bool { return len(contents(t, pool, outbox.Config{})) == 0 })
}

func TestRelayConfigReportsAllFaults(t *testing.T) {
	t.Parallel()
	_, err := outbox.NewRelay(nil, nil, outbox.RelayConfig{
		Topic: "a b", BatchSize: -1, Concurrency: -1, Shards: -1, MaxAttempts: -1, PollInterval: -1, CloseTimeout: -1,
		Wake: newPublisher(t, outbox.Config{}),
	}, nil)
	for _, fault := range []string{
		"pool", "broker", "topic", "BatchSize", "Concurrency", "Shards", "MaxAttempts", "PollInterval", "CloseTimeout", "Wake",
	} {
		require.ErrorContains(t, err, fault)
	}
	_, err = outbox.NewRelay(newPool(t), newPublisher(t, outbox.Config{}), outbox.RelayConfig{}, nil)
	require.ErrorContains(t, err, "broker is an outbox's Publisher")
}

func TestRelaySendsEverythingAsItWasPublished(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	msgs := difficult(250)
	publish(t, pool, msgs...)
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{Concurrency: 1})
	requireSent(t, msgs, b.wait(t, len(msgs)))
	drained(t, pool)
	require.Len(t, b.all(), len(msgs))
}

func TestRelayWorksInEveryExecMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			config, err := pgxpool.ParseConfig(newDatabase(t))
			require.NoError(t, err)
			config.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			msgs := difficult(20)
			publish(t, pool, msgs...)
			b := newBroker()
			startRelay(t, pool, b, outbox.RelayConfig{BatchSize: 7, Concurrency: 1})
			requireSent(t, msgs, b.wait(t, len(msgs)))
			drained(t, pool)
		})
	}
}

// What began first and committed last leaves last; a row that appears behind those already sent is not missed.
func TestRelaySendsALateCommitInItsPlace(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{})

	late := begin(t, pool)
	require.NoError(t, p.PublishTx(t.Context(), late, "topic", newMessage("a", "drawn first")))
	publish(t, pool, newMessage("b", "1"), newMessage("b", "2"))
	b.wait(t, 2)
	drained(t, pool)
	require.NoError(t, late.Commit(t.Context()))
	require.Equal(t, "drawn first", b.wait(t, 3)[2].Payload)

	early := begin(t, pool)
	_, err := early.Exec(t.Context(), `select pg_current_xact_id()`)
	require.NoError(t, err)
	publish(t, pool, newMessage("a", "before"))
	require.NoError(t, p.PublishTx(t.Context(), early, "topic", newMessage("a", "after")))
	require.NoError(t, early.Commit(t.Context()))
	require.Equal(t, []string{"before", "after"}, payloads(b.wait(t, 5)[3:]))
}

func TestRelayDoesNotSendWhatIsNotCommitted(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{})
	tx := begin(t, pool)
	require.NoError(t, p.PublishTx(t.Context(), tx, "topic", newMessage("a", "never")))
	publish(t, pool, newMessage("b", "1"))
	b.wait(t, 1)
	require.NoError(t, tx.Rollback(t.Context()))
	publish(t, pool, newMessage("a", "2"))
	require.Equal(t, []string{"1", "2"}, payloads(b.wait(t, 2)))
}

func TestAFailingMessageHoldsUpItsKeyAlone(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	var refusing atomic.Bool
	refusing.Store(true)
	b.refuse = func(_ string, msg *message.Message) error {
		if refusing.Load() && string(msg.Payload) == "3" {
			return errors.New("refused")
		}
		return nil
	}
	msgs := numbered(100, 4) // 3 is the first of its key
	publish(t, pool, msgs...)
	startRelay(t, pool, b, outbox.RelayConfig{BatchSize: 10})
	for _, s := range b.wait(t, 75) {
		require.NotEqual(t, "key-3", s.key())
	}
	refusing.Store(false)
	next := map[string]int{"key-0": 0, "key-1": 1, "key-2": 2, "key-3": 3}
	for _, s := range b.wait(t, 100) {
		require.Equal(t, fmt.Sprint(next[s.key()]), s.Payload)
		next[s.key()] += 4
	}
	drained(t, pool)
	require.Len(t, b.all(), 100)
}

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func TestAPanicOfTheBrokerIsAFailure(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func() error{
		"panic":                func() error { panic("no connection") },
		"Goexit":               func() error { runtime.Goexit(); return nil }, // what t.FailNow in a fake broker does
		"an error that panics": func() error { var none *nilError; return none },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			b := newBroker()
			var calls atomic.Int32
			b.refuse = func(string, *message.Message) error {
				if calls.Add(1) == 1 {
					return end()
				}
				return nil
			}
			publish(t, pool, numbered(3, 1)...)
			startRelay(t, pool, b, outbox.RelayConfig{Concurrency: 1})
			require.Equal(t, []string{"0", "1", "2"}, payloads(b.wait(t, 3)))
		})
	}
}

func TestNoTransactionIsOpenWhileTheBrokerIsAtIt(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	b.refuse = func(string, *message.Message) error {
		// The next page may be on its way for a moment.
		deadline := time.Now().Add(patience)
		for open := 1; open > 0; {
			err := pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database()
				and pid <> pg_backend_pid() and (xact_start is not null or backend_xmin is not null)`).Scan(&open)
			if err != nil {
				return err
			}
			if time.Now().After(deadline) {
				t.Error("a transaction stays open")
				break
			}
		}
		return nil
	}
	publish(t, pool, numbered(20, 3)...)
	startRelay(t, pool, b, outbox.RelayConfig{})
	b.wait(t, 20)
}

func TestOneRelayIsAtWorkAndAnotherTakesOver(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	brokers := []*broker{newBroker(), newBroker()}
	stops := []func(){startRelay(t, pool, brokers[0], outbox.RelayConfig{})}
	publish(t, pool, numbered(50, 3)...)
	brokers[0].wait(t, 1)
	stops = append(stops, startRelay(t, pool, brokers[1], outbox.RelayConfig{}))
	brokers[0].wait(t, 50)
	drained(t, pool)
	require.Empty(t, brokers[1].all())

	stops[0]()
	publish(t, pool, numbered(50, 3)...)
	brokers[1].wait(t, 50)
	drained(t, pool)
	require.Len(t, brokers[0].all(), 50)
	require.Len(t, brokers[1].all(), 50)
}

// The broker has taken messages, and the session is lost before they are deleted: this relay knows that it has sent
// them.
func TestASettledRelaySendsNothingTwice(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	var sends atomic.Int32
	b.refuse = func(string, *message.Message) error {
		if n := sends.Add(1); n == 10 || n == 15 {
			_, err := pool.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'
				and database = (select oid from pg_database where datname = current_database())`)
			return err
		}
		return nil
	}
	publish(t, pool, numbered(40, 3)...)
	startRelay(t, pool, b, outbox.RelayConfig{BatchSize: 12, Concurrency: 1})
	b.wait(t, 40)
	drained(t, pool)
	got := b.all()
	require.Len(t, got, 40)
	for i := range got {
		require.Equal(t, fmt.Sprint(i), got[i].Payload)
	}
}

// After a failover to a standby that was behind, the offset of a message that was sent may belong to another one.
func TestASentMessageIsNotTakenForAnotherOfItsOffset(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	b.refuse = func(_ string, msg *message.Message) error {
		if string(msg.Payload) != "0" {
			return nil
		}
		_, err := pool.Exec(t.Context(), `update watermill_outbox set uuid = 'another', payload = 'another';
			select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'
			and database = (select oid from pg_database where datname = current_database())`)
		return err
	}
	publish(t, pool, numbered(1, 1)...)
	startRelay(t, pool, b, outbox.RelayConfig{})
	require.Equal(t, []string{"0", "another"}, payloads(b.wait(t, 2)))
	drained(t, pool)
}

func TestRelayGoesOnWhenPostgreSQLIsBack(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	pool := pgtest.PoolOn(t, server.URL("postgres"))
	_, err := pool.Exec(t.Context(), outbox.Config{}.Schema())
	require.NoError(t, err)
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{})
	publish(t, pool, numbered(20, 2)...)
	b.wait(t, 20)
	for round := range 2 {
		require.NoError(t, server.Kill())
		require.NoError(t, server.Restart(t.Context()))
		eventually(t, "the pool is back", func() bool { return pool.Ping(t.Context()) == nil })
		publish(t, pool, newMessage("key", fmt.Sprint("round ", round)))
		eventually(t, "the relay is back", func() bool {
			all := b.all()
			return all[len(all)-1].Payload == fmt.Sprint("round ", round)
		})
	}
}

func TestRelayGoesOnWhenTheBrokerIsBack(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	var down atomic.Bool
	down.Store(true)
	var refused atomic.Int32
	b.refuse = func(string, *message.Message) error {
		if down.Load() {
			refused.Add(1)
			return errors.New("connection refused")
		}
		return nil
	}
	publish(t, pool, numbered(60, 20)...)
	startRelay(t, pool, b, outbox.RelayConfig{BatchSize: 10})
	eventually(t, "every key has been tried", func() bool { return refused.Load() >= 20 })
	down.Store(false)
	b.wait(t, 60)
	drained(t, pool)
}

func TestRelayFinishesWhatItIsSending(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	inHand, goOn := make(chan struct{}), make(chan struct{})
	b.refuse = func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "4" {
			close(inHand)
			<-goOn
			return msg.Context().Err() // which the end of Run's context does not reach
		}
		return nil
	}
	publish(t, pool, numbered(10, 2)...)
	relay, err := outbox.NewRelay(pool, b, outbox.RelayConfig{Concurrency: 1}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- relay.Run(ctx) }()
	<-inHand
	cancel()
	close(goOn)
	require.NoError(t, <-done)
	require.Equal(t, []string{"0", "1", "2", "3", "4"}, payloads(b.all()))
	require.Len(t, contents(t, pool, outbox.Config{}), 5)
}

func TestRelayLeavesAStuckPublishBehind(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	inHand, goOn := make(chan struct{}), make(chan struct{})
	b.refuse = func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "2" {
			close(inHand)
			<-goOn
		}
		return nil
	}
	publish(t, pool, numbered(5, 2)...)
	relay, err := outbox.NewRelay(pool, b, outbox.RelayConfig{CloseTimeout: 20 * time.Millisecond, Concurrency: 1}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- relay.Run(ctx) }()
	<-inHand
	cancel()
	require.ErrorIs(t, <-done, outbox.ErrCloseTimeout)
	require.Len(t, b.all(), 2)
	close(goOn)
	b.wait(t, 3)
	require.Len(t, contents(t, pool, outbox.Config{}), 3, "what was taken is deleted, the stuck message is not")
}

func TestRelayEndsWhileItHasNoConnection(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://localhost:1/none?connect_timeout=1")
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	startRelay(t, pool, newBroker(), outbox.RelayConfig{})()
}

// While it finishes what it is sending, the session must not fall silent: the server would end it, and with it the locks.
func TestTheSessionIsKeptAliveWhileTheRelayCloses(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	inHand, goOn := make(chan struct{}), make(chan struct{})
	b.refuse = func(string, *message.Message) error {
		close(inHand)
		<-goOn
		return nil
	}
	publish(t, pool, newMessage("key", "0"))
	relay, err := outbox.NewRelay(pool, b, outbox.RelayConfig{}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- relay.Run(ctx) }()
	<-inHand
	cancel()
	now := func() (at time.Time) {
		require.NoError(t, pool.QueryRow(t.Context(), `select clock_timestamp()`).Scan(&at))
		return at
	}
	const beats = 2500 * time.Millisecond // of one second, and the first may be that of before
	closing := now()
	eventually(t, "it says something", func() bool {
		var says bool
		err := pool.QueryRow(t.Context(), `select exists (
			select from pg_stat_activity
			where datname = current_database()
			  and pid in (select pid from pg_locks where locktype = 'advisory')
			  and state_change > $1)`, closing.Add(beats)).Scan(&says)
		require.NoError(t, err)
		require.Less(t, now().Sub(closing), 8*time.Second)
		return says
	})
	close(goOn)
	require.NoError(t, <-done)
	require.Len(t, b.all(), 1)
	requireEmpty(t, pool)
}

// The table is emptied by hand, and gives its offsets once more, to more messages than before.
func TestOffsetsBeginAnew(t *testing.T) {
	t.Parallel()
	pool, p := newPool(t), newPublisher(t, outbox.Config{})
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{Wake: p, PollInterval: time.Second})
	for round := range 5 {
		inTx(t, pool, func(tx pgx.Tx) {
			_, err := tx.Exec(t.Context(), `truncate watermill_outbox restart identity`)
			require.NoError(t, err)
			require.NoError(t, p.PublishTx(t.Context(), tx, "topic", numbered(round+1, 2)...))
		})
		p.Wake()
		b.wait(t, (round+1)*(round+2)/2)
		drained(t, pool)
	}
}

// Of a sequence with a cache, each session has offsets in stock: they do not grow in the order of time.
func TestARelayRefusesASequenceWithACache(t *testing.T) {
	t.Parallel()
	for _, change := range []string{"cache 10", "increment -1 maxvalue 1000 start 1000 restart"} {
		pool := newPool(t)
		_, err := pool.Exec(t.Context(), `alter sequence watermill_outbox_offset_seq `+change)
		require.NoError(t, err)
		relay, err := outbox.NewRelay(pool, newBroker(), outbox.RelayConfig{}, nil)
		require.NoError(t, err)
		err = relay.Run(t.Context())
		require.ErrorIs(t, err, outbox.ErrSequence)
		require.ErrorContains(t, err, "alter sequence public.watermill_outbox_offset_seq increment 1 cache 1")
	}
}

// Columns get their defaults in the order in which they stand.
func TestARelayRefusesATableThatDrawsOffsetsFirst(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	_, err := pool.Exec(t.Context(), `alter table watermill_outbox drop column transaction_id,
		add column transaction_id xid8 not null default pg_current_xact_id()`)
	require.NoError(t, err)
	relay, err := outbox.NewRelay(pool, newBroker(), outbox.RelayConfig{}, nil)
	require.NoError(t, err)
	err = relay.Run(t.Context())
	require.ErrorIs(t, err, outbox.ErrSequence)
	require.ErrorContains(t, err, "transaction_id stands behind")
}
