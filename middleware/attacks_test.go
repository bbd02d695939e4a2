package middleware_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
)

// Places are those of one table. A child of the table has its own.
func TestSweepOfATableWithChildren(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	w.addClaims("young", 100, "0 days")
	_, err := w.pool.Exec(t.Context(), `
		create table archive () inherits (watermill_processed_events);
		insert into archive (consumer, event_id, processed_at)
		select 'test', 'old' || n, now() - interval '31 days' from generate_series(1, 100) as n`)
	require.NoError(t, err)
	swept, err := newSweeper(t, w.pool, claimsOfAMonth).Sweep(t.Context())
	t.Log(swept, err)
	require.Equal(t, 100, w.count(`select count(*) from only watermill_processed_events where event_id like 'young%'`))
}

func TestSweepMeetsInfinity(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	_, err := w.pool.Exec(t.Context(), `insert into watermill_processed_events (consumer, event_id, processed_at) values ('test', 'for ever', 'infinity')`)
	require.NoError(t, err)
	w.addClaims("old", 100, "31 days")
	_, err = newSweeper(t, w.pool, claimsOfAMonth).Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, w.claims())
}

func TestSweepMeetsAncient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	_, err := w.pool.Exec(t.Context(), `insert into watermill_processed_events (consumer, event_id, processed_at) values ('test', 'a', '4713-01-01 BC'), ('test', 'b', '294276-01-01')`)
	require.NoError(t, err)
	_, err = newSweeper(t, w.pool, once.SweeperConfig{ClaimsAge: 1<<63 - 1, BrokerRetention: 1}).Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, w.claims())
}

// An outage of what Probe asks.
func TestProbeAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	runs := 0
	h := w.lease(once.LeasedConfig{Effects: dedupe.EffectsConfig{OnUnknown: dedupe.Probe, Probe: func(context.Context, string) (json.RawMessage, bool, error) {
		return nil, false, errors.New("503")
	}}}, func(*message.Message) ([]*message.Message, error) { runs++; return nil, errors.New("timeout") })
	require.Error(t, deliver(t, h, newMessage("event")))
	err := deliver(t, h, newMessage("event"))
	t.Log(err, runs)
	require.False(t, once.ShouldPoison(err), "the handler did not run, and the message is not to blame")
}

func TestProbeFindsNothingToShow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	h := w.lease(once.LeasedConfig{Effects: dedupe.EffectsConfig{OnUnknown: dedupe.Probe, Probe: func(context.Context, string) (json.RawMessage, bool, error) {
		return nil, true, nil
	}}}, func(*message.Message) ([]*message.Message, error) { return nil, errors.New("timeout") })
	require.Error(t, deliver(t, h, newMessage("event")))
	require.NoError(t, deliver(t, h, newMessage("event")), "of the outcome only that there is one counts")
}

// One of two calls was declined, and of the other nobody knows.
func TestLeasedJoinsFinalAndUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	h := w.lease(once.LeasedConfig{}, func(*message.Message) ([]*message.Message, error) {
		return nil, errors.Join(errors.New("mail: timeout"), dedupe.Final(errors.New("card: declined")))
	})
	err := deliver(t, h, newMessage("event"))
	require.ErrorContains(t, err, "mail: timeout")
	require.Equal(t, "unknown", w.effectState("event"))
}

// A trigger of the user's that fails on a null of its own is no mismatch.
func TestTriggerOnClaims(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, w *world) {
		_, err := w.pool.Exec(t.Context(), `
			create table audit (who text not null);
			create function note() returns trigger language plpgsql as $$ begin insert into audit values (nullif(current_setting('app.user', true), '')); return new; end $$;
			create trigger note before insert on watermill_processed_events for each row execute function note()`)
		require.NoError(t, err)
		h := w.consume(once.Config{Dedupe: dedupe.Config{Fingerprint: true}}, apply)
		err = deliver(t, h, newMessage("event"))
		t.Log(err)
		require.NotErrorIs(t, err, dedupe.ErrFingerprintMismatch)
	})
}

// Two Forgets of many and few, while the table is large enough for two plans.
func TestForgetsAtTheSameTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	const n = 3000
	// heap order is the opposite of the index's
	_, err := w.pool.Exec(t.Context(), `insert into watermill_processed_events (consumer, event_id)
		select 'test', 'e' || to_char(n, 'FM00000') from generate_series($1::int, 1, -1) as n`, n)
	require.NoError(t, err)
	_, err = w.pool.Exec(t.Context(), `insert into watermill_entity_versions (consumer, entity, version, event_id)
		select 'test', 'x' || to_char(n, 'FM00000'), 1, 'e' || to_char(n, 'FM00000') from generate_series($1::int, 1, -1) as n`, n)
	require.NoError(t, err)
	_, err = w.pool.Exec(t.Context(), `analyze`)
	require.NoError(t, err)
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("e%05d", i+1)
	}
	config := once.Config{Ordering: byMetadata}
	var deadlocks atomic.Int32
	for range 12 {
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				conn, err := pgx.Connect(t.Context(), w.url)
				require.NoError(t, err)
				defer conn.Close(t.Context())
				if i == 0 {
					_, _ = conn.Exec(t.Context(), `set enable_seqscan = off; set enable_bitmapscan = off`)
				} else {
					_, _ = conn.Exec(t.Context(), `set enable_indexscan = off; set enable_bitmapscan = off; set enable_indexonlyscan = off`)
				}
				tx, err := conn.Begin(t.Context())
				require.NoError(t, err)
				if _, err := config.Forget(t.Context(), tx, "test", ids...); err != nil {
					t.Log(i, err)
					deadlocks.Add(1)
				}
				_ = tx.Rollback(t.Context())
			})
		}
		wg.Wait()
	}
	require.Zero(t, deadlocks.Load())
}

// Forget of many, beside handlers with Ordering.
func TestForgetAndHandlers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	config := once.Config{Consumer: "test", Ordering: ordering.Config{Position: ordering.Metadata("entity", "version")}, MaxAttempts: 1}
	h := w.consume(config, apply)
	ids := make([]string, 10000)
	for i := range ids {
		ids[i] = fmt.Sprintf("e'\"\\%%\u2028%05d", i)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var faults atomic.Int32
	for g := range 3 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := deliver(t, h, versioned(ids[(i*3+g)%300], fmt.Sprint("card", i%7), fmt.Sprint(i))); err != nil {
					t.Log("handler", err)
					faults.Add(1)
				}
			}
		})
	}
	for range 10 {
		if f, err := w.forget(config, "", ids...); err != nil {
			t.Log("forget", err)
			faults.Add(1)
		} else {
			t.Log(f)
		}
	}
	close(stop)
	wg.Wait()
	require.Zero(t, faults.Load())
}

// The documented stack, in a Router over a gochannel.
func TestLeasedInTheDocumentedOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	broker := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 100, Persistent: true}, nil)
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	require.NoError(t, err)
	poison, err := wmiddleware.PoisonQueueWithFilter(broker, "poison", once.ShouldPoison)
	require.NoError(t, err)
	var mu sync.Mutex
	kinds := map[string][]once.Kind{}
	runs := map[string]int{}
	leased, err := once.Leased(w.pool, once.LeasedConfig{
		Effects: dedupe.EffectsConfig{Wait: 10 * time.Second},
		OnOutcome: func(_ context.Context, o once.Outcome) {
			mu.Lock()
			defer mu.Unlock()
			kinds[o.EventID] = append(kinds[o.EventID], o.Kind)
		}})
	require.NoError(t, err)
	e := w.operator("")
	router.AddMiddleware(poison, wmiddleware.Retry{MaxRetries: 3, InitialInterval: time.Millisecond, ShouldRetry: once.ShouldRetry}.Middleware, wmiddleware.Recoverer, leased)
	var done atomic.Int32
	router.AddConsumerHandler("pay", "events", broker, func(msg *message.Message) error {
		mu.Lock()
		runs[msg.UUID]++
		n := runs[msg.UUID]
		mu.Unlock()
		key, _ := once.IdempotencyKey(msg.Context(), "charge")
		_, err := dedupe.Do(msg.Context(), e, key, msg.UUID, func(context.Context, string) (string, error) {
			switch {
			case msg.UUID == "declined":
				return "", dedupe.Final(errors.New("declined"))
			case msg.UUID == "panics" && n == 1:
				panic("oh")
			case msg.UUID == "times out" && n < 3:
				return "", errors.New("timeout")
			case msg.UUID == "never":
				return "", errors.New("timeout")
			case msg.UUID == "slow":
				time.Sleep(200 * time.Millisecond)
			}
			done.Add(1)
			return "ok", nil
		})
		return err
	})
	poisoned, err := broker.Subscribe(t.Context(), "poison")
	require.NoError(t, err)
	go func() { _ = router.Run(context.Background()) }()
	<-router.Running()
	defer router.Close()
	for _, id := range []string{"declined", "panics", "times out", "never"} {
		require.NoError(t, broker.Publish("events", newMessage(id)))
	}
	for range 50 {
		require.NoError(t, broker.Publish("events", newMessage("slow")))
	}
	got := map[string]int{}
	for range 2 {
		m := <-poisoned
		got[m.UUID]++
		m.Ack()
	}
	require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(kinds["slow"]) == 50 }, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, map[string]int{"declined": 1, "never": 1}, got)
	mu.Lock()
	defer mu.Unlock()
	t.Log(kinds["declined"], kinds["panics"], kinds["times out"], kinds["never"], runs, done.Load())
	require.Equal(t, 1, runs["slow"])
}

func TestSerializableFifty(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	for _, level := range []string{"serializable", "repeatable%20read"} {
		pool := pgtest.PoolOn(t, w.url+"&default_transaction_isolation="+level)
		var calls, faults atomic.Int32
		e, err := dedupe.NewEffects(pool, dedupe.EffectsConfig{Wait: time.Minute})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for k := range 10 {
					if _, err := dedupe.Do(t.Context(), e, fmt.Sprint(level, k), nil, func(context.Context, string) (int, error) { calls.Add(1); return 1, nil }); err != nil {
						t.Log(err)
						faults.Add(1)
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 10, calls.Load())
		require.Zero(t, faults.Load())
	}
}

var _ = pgxpool.New
