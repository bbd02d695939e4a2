package middleware_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/internal/tcpproxy"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
)

// lease wraps a handler by Leased, with "test" as the consumer where config names none.
func (w *world) lease(config once.LeasedConfig, h message.HandlerFunc) message.HandlerFunc {
	w.t.Helper()
	if config.Consumer == "" {
		config.Consumer = "test"
	}
	mw, err := once.Leased(w.pool, config)
	require.NoError(w.t, err)
	return mw(h)
}

func (w *world) effectState(key string) (state string) {
	w.t.Helper()
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), `select state from watermill_effects where key = $1`, key).Scan(&state))
	return state
}

// behindProxy puts a proxy between Leased and PostgreSQL.
func (w *world) behindProxy() *tcpproxy.Proxy {
	w.t.Helper()
	proxy, url := pgtest.Proxy(w.t, w.url)
	w.pool = pgtest.PoolOn(w.t, url)
	return proxy
}

// operator gives the journal of a handler's consumer, as an operator opens it.
func (w *world) operator(consumer string) *dedupe.Effects {
	w.t.Helper()
	e, err := dedupe.NewEffects(w.pool, dedupe.EffectsConfig{Consumer: consumer})
	require.NoError(w.t, err)
	return e
}

func TestLeasedRunsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	runs := 0
	var seen recorder
	h := w.lease(once.LeasedConfig{OnOutcome: seen.record}, func(msg *message.Message) ([]*message.Message, error) {
		runs++
		ctx := msg.Context()
		require.Equal(t, "event", once.EventID(ctx))
		_, ok := once.PgxTx(ctx)
		require.False(t, ok)
		_, ok = once.SQLTx(ctx)
		require.False(t, ok)
		require.ErrorIs(t, once.Queue(ctx, `select 1`), outbox.ErrNoTransaction)
		return nil, nil
	})
	for range 3 {
		require.NoError(t, deliver(t, h, newMessage("event")))
	}
	require.Equal(t, 1, runs)
	require.Equal(t, "done", w.effectState("event"))
	require.Len(t, seen.outcomes, 3)
	require.Equal(t, once.Fresh, seen.outcomes[0].Kind)
	require.Equal(t, 1, seen.outcomes[0].Attempts)
	for _, o := range seen.outcomes[1:] {
		require.Equal(t, once.Duplicate, o.Kind)
		require.Zero(t, o.Attempts)
		require.Equal(t, "test", o.Consumer)
		require.Equal(t, "event", o.EventID)
	}
	// Transactional of the same name knows nothing of it.
	require.NoError(t, deliver(t, w.consume(once.Config{}, apply), newMessage("event")))
	require.Equal(t, 1, w.effects())
}

func TestLeasedKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	type keys struct{ charge, uuid string }
	read := func(into *keys) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			var ok bool
			into.charge, ok = once.IdempotencyKey(msg.Context(), "charge")
			require.True(t, ok)
			into.uuid, ok = once.DeriveUUID(msg.Context(), "charge")
			require.True(t, ok)
			return nil, errors.New("again")
		}
	}
	var first, second, transactional, other, shifted keys
	h := func(consumer string, into *keys) message.HandlerFunc {
		return w.lease(once.LeasedConfig{Consumer: consumer}, read(into))
	}
	require.Error(t, deliver(t, h("a", &first), newMessage("bc")))
	require.Error(t, deliver(t, h("a", &second), newMessage("bc")))
	require.Error(t, deliver(t, w.consume(once.Config{Consumer: "a"}, read(&transactional)), newMessage("bc")))
	require.Error(t, deliver(t, h("b", &other), newMessage("bc")))
	require.Error(t, deliver(t, h("ab", &shifted), newMessage("c")))
	require.Equal(t, first, second, "the same on every attempt")
	require.Equal(t, first, transactional, "and in both middlewares")
	require.NotEqual(t, first, other)
	require.NotEqual(t, first, shifted)
	require.Regexp(t, `^[0-9a-f]{64}$`, first.charge)
}

func TestLeasedAfterAnError(t *testing.T) {
	t.Parallel()
	noLuck := errors.New("no luck")
	for name, test := range map[string]struct {
		err       error
		state     string
		permanent bool
	}{
		"plain":     {noLuck, "unknown", false},
		"permanent": {once.Permanent(noLuck), "unknown", true},
		"not done":  {dedupe.NotDone(noLuck), "free", false},
		"malformed": {dedupe.NotDone(once.Permanent(noLuck)), "free", true},
		"final":     {fmt.Errorf("charge: %w", dedupe.Final(noLuck)), "failed", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "pgx")
			var seen recorder
			err := deliver(t, w.lease(once.LeasedConfig{OnOutcome: seen.record}, func(*message.Message) ([]*message.Message, error) {
				return nil, test.err
			}), newMessage("event"))
			require.ErrorIs(t, err, noLuck)
			require.Equal(t, test.permanent, once.IsPermanent(err))
			require.True(t, once.ShouldPoison(err))
			require.Equal(t, test.state, w.effectState("event"))
			require.Equal(t, once.Failed, seen.outcomes[0].Kind)
			require.Equal(t, err, seen.outcomes[0].Err)

			runs := 0
			run := func(policy dedupe.OnUnknown) error {
				config := once.LeasedConfig{Effects: dedupe.EffectsConfig{OnUnknown: policy}}
				return deliver(t, w.lease(config, func(*message.Message) ([]*message.Message, error) {
					runs++
					return nil, nil
				}), newMessage("event"))
			}
			err = run(dedupe.Refuse)
			switch test.state {
			case "unknown":
				require.ErrorIs(t, err, dedupe.ErrUnknown)
				require.True(t, once.IsPermanent(err))
				require.True(t, once.ShouldPoison(err))
				require.NoError(t, run(dedupe.Repeat))
				require.Equal(t, 1, runs)
			case "free":
				require.NoError(t, err)
				require.Equal(t, 1, runs)
			case "failed":
				var final *dedupe.FinalError
				require.ErrorAs(t, err, &final)
				require.True(t, once.IsPermanent(err))
				require.True(t, once.ShouldPoison(err))
				require.ErrorAs(t, run(dedupe.Repeat), &final)
				require.Zero(t, runs)
			}
		})
	}
}

func TestLeasedPanic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	var seen recorder
	msg := newMessage("event")
	before := msg.Context()
	h := w.lease(once.LeasedConfig{OnOutcome: seen.record}, func(*message.Message) ([]*message.Message, error) { panic("oh") })
	require.PanicsWithValue(t, "oh", func() { _, _ = h(msg) })
	require.Equal(t, before, msg.Context())
	require.Equal(t, "unknown", w.effectState("event"))
	require.Equal(t, once.Failed, seen.outcomes[0].Kind)
	require.Error(t, seen.outcomes[0].Err)
}

func TestLeasedInFlight(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	effects := dedupe.EffectsConfig{Wait: -1, Lease: 3 * time.Second}
	runs := 0
	h := w.lease(once.LeasedConfig{Effects: effects}, func(msg *message.Message) ([]*message.Message, error) {
		runs++
		for began := time.Now(); time.Since(began) < 2*effects.Lease; {
			err := deliver(t, w.lease(once.LeasedConfig{Effects: effects}, func(*message.Message) ([]*message.Message, error) {
				runs++
				return nil, nil
			}), newMessage("event"))
			require.ErrorIs(t, err, dedupe.ErrInFlight)
			require.False(t, once.IsPermanent(err))
			require.False(t, once.ShouldPoison(err))
			require.True(t, once.ShouldRetry(wmiddleware.RetryParams{Err: err}))
		}
		return nil, msg.Context().Err()
	})
	require.NoError(t, deliver(t, h, newMessage("event")))
	require.Equal(t, 1, runs)
}

// A handler whose lease another one has taken is told to end, and what it made is not written.
func TestLeasedLosesItsLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	publisher := newPublisher(t)
	config := once.LeasedConfig{Outbox: publisher, Effects: dedupe.EffectsConfig{Lease: 3 * time.Second}}
	produce := func(msg *message.Message, uuid string) {
		require.NoError(t, publisher.PublishContext(msg.Context(), "receipts", newMessage(uuid)))
	}
	h := w.lease(config, func(msg *message.Message) ([]*message.Message, error) {
		produce(msg, "old")
		_, err := w.pool.Exec(t.Context(), `update watermill_effects set lease_until = clock_timestamp() - interval '1 s'`)
		require.NoError(t, err)
		require.NoError(t, deliver(t, w.lease(config, func(msg *message.Message) ([]*message.Message, error) {
			produce(msg, "new")
			return nil, nil
		}), newMessage("event")))
		<-msg.Context().Done()
		return nil, nil
	})
	err := deliver(t, h, newMessage("event"))
	require.ErrorIs(t, err, dedupe.ErrLeaseLost)
	require.False(t, once.IsPermanent(err))
	require.False(t, once.ShouldPoison(err))
	require.Equal(t, 1, w.count(`select count(*) from watermill_outbox where uuid = 'new'`))
	require.Equal(t, 1, w.outbox())
	require.Equal(t, "done", w.effectState("event"))
}

func TestLeasedOperator(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	config := once.LeasedConfig{Consumer: "mailer", Effects: dedupe.EffectsConfig{OnUnknown: dedupe.Refuse}}
	runs := 0
	h := w.lease(config, func(*message.Message) ([]*message.Message, error) {
		runs++
		return nil, errors.New("timeout")
	})
	for _, id := range []string{"e1", "e2"} {
		require.Error(t, deliver(t, h, newMessage(id)))
		require.ErrorIs(t, deliver(t, h, newMessage(id)), dedupe.ErrUnknown)
	}
	require.Equal(t, 2, runs)
	operator := w.operator("mailer")
	list, err := operator.List(t.Context(), dedupe.Unknown, 10)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "e1", list[0].Key)
	require.Equal(t, "timeout", list[0].LastError)
	require.NoError(t, operator.Resolve(t.Context(), "e1", nil))
	require.NoError(t, operator.ResolveNotDone(t.Context(), "e2"))
	require.NoError(t, deliver(t, h, newMessage("e1")))
	require.Equal(t, 2, runs)
	require.ErrorContains(t, deliver(t, h, newMessage("e2")), "timeout")
	require.Equal(t, 3, runs)
}

func TestLeasedProbe(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	var (
		handlerKey, probeKey, probed string
		kinds                        []once.Kind
	)
	config := once.LeasedConfig{OnOutcome: func(_ context.Context, o once.Outcome) { kinds = append(kinds, o.Kind) }, Effects: dedupe.EffectsConfig{
		OnUnknown: dedupe.Probe,
		Probe: func(ctx context.Context, key string) (json.RawMessage, bool, error) {
			probed = key
			probeKey, _ = once.IdempotencyKey(ctx, "charge")
			return json.RawMessage(`{}`), true, nil
		},
	}}
	h := w.lease(config, func(msg *message.Message) ([]*message.Message, error) {
		handlerKey, _ = once.IdempotencyKey(msg.Context(), "charge")
		return nil, errors.New("timeout")
	})
	require.Error(t, deliver(t, h, newMessage("event")))
	require.NoError(t, deliver(t, h, newMessage("event")))
	require.Equal(t, "event", probed)
	require.NotEmpty(t, handlerKey)
	require.Equal(t, handlerKey, probeKey)
	require.Equal(t, "done", w.effectState("event"))
	require.Equal(t, []once.Kind{once.Failed, once.Duplicate}, kinds)

	config.Outbox = newPublisher(t)
	require.ErrorContains(t, config.Validate(), "Outbox and OnUnknown Probe")
}

func TestLeasedNested(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	none := func(*message.Message) ([]*message.Message, error) { return nil, nil }

	err := deliver(t, w.lease(once.LeasedConfig{}, w.lease(once.LeasedConfig{}, none)), newMessage("e1"))
	require.ErrorContains(t, err, "stands twice")
	require.True(t, once.IsPermanent(err))
	require.False(t, once.ShouldPoison(err))

	err = deliver(t, w.consume(once.Config{}, w.lease(once.LeasedConfig{}, none)), newMessage("e2"))
	require.ErrorIs(t, err, dedupe.ErrInTransaction)
	require.True(t, once.IsPermanent(err))
	require.False(t, once.ShouldPoison(err))

	require.NoError(t, deliver(t, w.lease(once.LeasedConfig{}, w.consume(once.Config{}, apply)), newMessage("e3")))
	require.Equal(t, 1, w.effects())
}

func TestDoInAHandler(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	e := w.operator("")
	calls := 0
	do := func(msg *message.Message) ([]*message.Message, error) {
		key, ok := once.IdempotencyKey(msg.Context(), "charge")
		require.True(t, ok)
		_, err := dedupe.Do(msg.Context(), e, key, "100 EUR", func(context.Context, string) (string, error) {
			calls++
			return "r1", nil
		})
		return nil, err
	}
	for _, driver := range []string{"pgx", "sql-pgx"} {
		w := newWorld(t, driver)
		err := deliver(t, w.consume(once.Config{}, do), newMessage("event"))
		require.ErrorIs(t, err, dedupe.ErrInTransaction)
		require.False(t, once.ShouldPoison(err))
	}
	require.Zero(t, calls)
	require.NoError(t, deliver(t, w.lease(once.LeasedConfig{}, do), newMessage("event")))
	require.Equal(t, 1, calls)
}

func TestLeasedBadMessagesAndConfigs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	none := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	var seen recorder
	h := w.lease(once.LeasedConfig{Key: dedupe.Metadata("id"), OnOutcome: seen.record}, none)
	err := deliver(t, h, newMessage("event"))
	require.ErrorIs(t, err, dedupe.ErrInvalidKey)
	require.True(t, once.IsPermanent(err))
	require.True(t, once.ShouldPoison(err))
	require.Equal(t, once.Failed, seen.outcomes[0].Kind)
	mw, err := once.Leased(w.pool, once.LeasedConfig{})
	require.NoError(t, err)
	require.ErrorIs(t, deliver(t, mw(none), newMessage("event")), once.ErrNoConsumer)

	_, err = once.Leased(nil, once.LeasedConfig{
		Consumer: "\xff", Effects: dedupe.EffectsConfig{Consumer: "x", Table: "a.b.c", Lease: 1},
	})
	for _, fault := range []string{"pool is nil", "Consumer is not valid UTF-8", "Table", "Lease", "Effects.Consumer"} {
		require.ErrorContains(t, err, fault)
	}
}

// What fails before the handler has run is no fault of the message.
func TestLeasedWithoutADatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	proxy := w.behindProxy()
	h := w.lease(once.LeasedConfig{}, func(*message.Message) ([]*message.Message, error) { panic("not reached") })
	proxy.Down(true)
	proxy.Cut()
	err := deliver(t, h, newMessage("event"))
	require.Error(t, err)
	require.False(t, once.IsPermanent(err))
	require.False(t, once.ShouldPoison(err))
	proxy.Down(false)

	_, err = w.pool.Exec(t.Context(), `drop table watermill_effects`)
	require.NoError(t, err)
	err = deliver(t, h, newMessage("event"))
	require.Error(t, err)
	require.False(t, once.ShouldPoison(err))
}

func TestLeasedRoundTrips(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	proxy := w.behindProxy()
	publisher := newPublisher(t)
	h := w.lease(once.LeasedConfig{Outbox: publisher}, func(msg *message.Message) ([]*message.Message, error) {
		return nil, publisher.PublishContext(msg.Context(), "receipts", newMessage("receipt"))
	})
	for i := range 3 { // the statements get prepared
		require.NoError(t, deliver(t, h, newMessage(fmt.Sprint("warm", i))))
	}
	for name, want := range map[string]int{"fresh": 2, "duplicate": 1} {
		proxy.Reset()
		require.NoError(t, deliver(t, h, newMessage(map[string]string{"fresh": "new", "duplicate": "warm1"}[name])))
		require.Equal(t, want, proxy.RoundTrips(), name)
	}
}

func TestLeasedThroughPgBouncer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	url := pgtest.Bouncer(t, w.url)
	for _, mode := range []string{"exec", "simple_protocol", "cache_describe"} {
		pool, err := pgxpool.New(t.Context(), url+"&default_query_exec_mode="+mode)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		publisher := newPublisher(t)
		mw, err := once.Leased(pool, once.LeasedConfig{Consumer: mode, Effects: dedupe.EffectsConfig{Lease: 3 * time.Second}})
		require.NoError(t, err)
		runs := 0
		h := mw(func(msg *message.Message) ([]*message.Message, error) {
			runs++
			first := w.leaseEnd("event", mode)
			require.Eventually(t, func() bool { return w.leaseEnd("event", mode).After(first) }, 20*time.Second, 5*time.Millisecond)
			return nil, errors.Join(msg.Context().Err(), publisher.PublishContext(msg.Context(), "receipts", newMessage("r"+mode)))
		})
		for range 3 {
			require.NoError(t, deliver(t, h, newMessage("event")), mode)
		}
		require.Equal(t, 1, runs, mode)
		require.Equal(t, 1, w.count(`select count(*) from watermill_outbox where uuid = $1`, "r"+mode), mode)
	}
}

func (w *world) leaseEnd(key, consumer string) (end time.Time) {
	w.t.Helper()
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(),
		`select lease_until from watermill_effects where key = $1 and consumer = $2`, key, consumer).Scan(&end))
	return end
}

func TestLeasedSchema(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	config := once.LeasedConfig{Effects: dedupe.EffectsConfig{Table: "calls"}, Outbox: newPublisher(t)}
	require.NoError(t, once.InitializeSchema(t.Context(), once.Pgx(pool), config))
	w := &world{t: t, pool: pool}
	require.Equal(t, 2, w.count(`select count(*) from pg_tables where tablename in ('calls', 'watermill_outbox')`))
	require.NoError(t, deliver(t, w.lease(config, func(*message.Message) ([]*message.Message, error) { return nil, nil }), newMessage("e")))
	require.Equal(t, 1, w.count(`select count(*) from calls where state = 'done'`))
}

// An outage of what Probe asks.
func TestLeasedWhileProbeCannotAsk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	runs := 0
	h := w.lease(once.LeasedConfig{Effects: dedupe.EffectsConfig{OnUnknown: dedupe.Probe, Probe: func(context.Context, string) (json.RawMessage, bool, error) {
		return nil, false, errors.New("503")
	}}}, func(*message.Message) ([]*message.Message, error) { runs++; return nil, errors.New("timeout") })
	require.Error(t, deliver(t, h, newMessage("event")))
	err := deliver(t, h, newMessage("event"))
	require.Equal(t, 1, runs)
	require.False(t, once.ShouldPoison(err), "the handler did not run, and the message is not to blame")
}

func TestLeasedProbeNeedsNoOutcome(t *testing.T) {
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
