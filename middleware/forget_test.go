package middleware_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
)

// forget runs Config.Forget, or its form for database/sql, in a transaction of its own.
func (w *world) forget(config once.Config, consumer string, ids ...string) (forgotten once.Forgotten, err error) {
	w.t.Helper()
	if w.driver == "pgx" {
		err = pgx.BeginFunc(w.t.Context(), w.pool, func(tx pgx.Tx) error {
			forgotten, err = config.Forget(w.t.Context(), tx, consumer, ids...)
			return err
		})
		return forgotten, err
	}
	db, err := sql.Open(map[string]string{"sql-pgx": "pgx", "sql-pq": "postgres"}[w.driver], w.url)
	require.NoError(w.t, err)
	defer db.Close()
	tx, err := db.BeginTx(w.t.Context(), nil)
	require.NoError(w.t, err)
	defer tx.Rollback()
	if forgotten, err = config.ForgetSQLTx(w.t.Context(), tx, consumer, ids...); err != nil {
		return forgotten, err
	}
	return forgotten, tx.Commit()
}

func TestForget(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		var seen recorder
		config := once.Config{Ordering: byMetadata, OnOutcome: seen.record}
		h := w.consume(config, apply)
		last := func(msg *message.Message) once.Kind {
			t.Helper()
			require.NoError(t, deliver(t, h, msg))
			return seen.outcomes[len(seen.outcomes)-1].Kind
		}
		e1, e2, e3 := versioned("e1", "card", "1"), versioned("e2", "card", "2"), versioned("e3", "account", "1")
		for _, msg := range []*message.Message{e1, e2, e3} {
			require.Equal(t, once.Fresh, last(msg))
			require.Equal(t, once.Duplicate, last(msg))
		}

		forgotten, err := w.forget(config, "test", "e1", "e2", "never seen")
		require.NoError(t, err)
		require.Equal(t, once.Forgotten{Claims: 2, Versions: 1}, forgotten)
		require.Equal(t, once.Stale, last(e1), "what came after it is applied")
		require.Equal(t, once.Fresh, last(e2), "the last event of its entity runs again")
		require.Equal(t, once.Duplicate, last(e2))
		require.Equal(t, once.Duplicate, last(e3), "not forgotten")

		_, err = w.pool.Exec(t.Context(), `delete from watermill_processed_events`)
		require.NoError(t, err)
		require.Equal(t, once.Stale, last(e2), "a claim that was swept, not forgotten, stays protected by the version")

		forgotten, err = w.forget(config, "test", "never seen")
		require.NoError(t, err)
		require.Zero(t, forgotten)
		require.Equal(t, 4, w.effects())
	})
}

func TestForgetWithoutVersions(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		h := w.consume(once.Config{}, apply)
		for range 2 {
			require.NoError(t, deliver(t, h, newMessage("event")))
		}
		_, err := w.pool.Exec(t.Context(), `drop table watermill_entity_versions`)
		require.NoError(t, err)
		forgotten, err := w.forget(once.Config{Consumer: "test"}, "", "event")
		require.NoError(t, err)
		require.Equal(t, once.Forgotten{Claims: 1}, forgotten)
		require.NoError(t, deliver(t, h, newMessage("event")))
		require.Equal(t, 2, w.effects())
	})
}

func TestForgetWithoutClaims(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		config := once.Config{Ordering: byMetadata, Dedupe: dedupe.Config{Disabled: true}}
		h := w.consume(config, apply)
		for range 2 {
			require.NoError(t, deliver(t, h, versioned("event", "card", "1")))
		}
		_, err := w.pool.Exec(t.Context(), `drop table watermill_processed_events`)
		require.NoError(t, err)
		forgotten, err := w.forget(config, "test", "event")
		require.NoError(t, err)
		require.Equal(t, once.Forgotten{Versions: 1}, forgotten)
		require.NoError(t, deliver(t, h, versioned("event", "card", "1")))
		require.Equal(t, 2, w.effects())
	})
}

func TestForgetRefusesADoubtfulConsumer(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		_, err := w.forget(once.Config{}, "", "event")
		require.ErrorIs(t, err, once.ErrNoConsumer)
		_, err = w.forget(once.Config{Consumer: "orders"}, "ledger", "event")
		require.ErrorContains(t, err, `"ledger"`)
		_, err = w.forget(once.Config{Consumer: "orders"}, "orders", "")
		require.ErrorIs(t, err, dedupe.ErrInvalidKey)
		_, err = w.forget(once.Config{Consumer: "orders", Dedupe: dedupe.Config{Table: "nowhere"}}, "", "event")
		require.ErrorContains(t, err, "nowhere")
		_, err = w.forget(once.Config{Consumer: "orders", Ordering: ordering.Config{Position: byMetadata.Position, Table: "nowhere"}}, "", "event")
		require.ErrorContains(t, err, "nowhere")
	})
}

// An event is being handled when it is to be forgotten: that run ends first, and the next delivery is a second one.
func TestForgetWhileTheEventIsHandled(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		config := once.Config{Ordering: byMetadata}
		entered, goOn := make(chan struct{}), make(chan struct{})
		h := w.consume(config, func(msg *message.Message) ([]*message.Message, error) {
			if entered != nil {
				close(entered)
				<-goOn
				entered = nil
			}
			return apply(msg)
		})
		handled := make(chan error, 1)
		wait := entered
		go func() {
			_, err := h(versioned("event", "card", "1"))
			handled <- err
		}()
		<-wait
		forgotten := make(chan once.Forgotten, 1)
		go func() {
			f, err := w.forget(config, "test", "event")
			if err != nil {
				t.Error(err)
			}
			forgotten <- f
		}()
		require.Eventually(t, func() bool {
			return w.count(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) == 1
		}, 20*time.Second, 5*time.Millisecond)
		close(goOn)
		require.NoError(t, <-handled)
		require.Equal(t, once.Forgotten{Claims: 1, Versions: 1}, <-forgotten)
		require.NoError(t, deliver(t, h, versioned("event", "card", "1")))
		require.Equal(t, 2, w.effects())
	})
}

// A process with a cache goes on taking the event for a duplicate until its entry is CacheTTL old.
func TestForgetAndTheCache(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	config := once.Config{Dedupe: dedupe.Config{Cache: 10, CacheTTL: time.Hour}}
	cached, other := w.consume(config, apply), w.consume(config, apply)
	require.NoError(t, deliver(t, cached, newMessage("event")))
	_, err := w.forget(config, "test", "event")
	require.NoError(t, err)
	require.NoError(t, deliver(t, cached, newMessage("event")))
	require.Equal(t, 1, w.effects())
	require.NoError(t, deliver(t, other, newMessage("event")))
	require.Equal(t, 2, w.effects())

	brief := config
	brief.Dedupe.CacheTTL = time.Nanosecond
	h := w.consume(brief, apply)
	_, err = w.forget(config, "test", "event")
	require.NoError(t, err)
	require.NoError(t, deliver(t, h, newMessage("event")))
	_, err = w.forget(config, "test", "event")
	require.NoError(t, err)
	require.NoError(t, deliver(t, h, newMessage("event")))
	require.Equal(t, 4, w.effects())
}

// Forget may be called by a handler, in its transaction.
func TestForgetInAHandler(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	config := once.Config{Ordering: byMetadata}
	h := w.consume(config, apply)
	require.NoError(t, deliver(t, h, versioned("event", "card", "1")))
	operator := w.consume(once.Config{Consumer: "operator"}, func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := once.PgxTx(msg.Context())
		_, err := config.Forget(context.WithoutCancel(msg.Context()), tx, "test", "event")
		return nil, err
	})
	require.NoError(t, deliver(t, operator, newMessage("command")))
	require.NoError(t, deliver(t, h, versioned("event", "card", "1")))
	require.Equal(t, 2, w.effects())
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
	for range 12 {
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				conn, err := pgx.Connect(t.Context(), w.url)
				if !assert.NoError(t, err) {
					return
				}
				defer conn.Close(t.Context())
				if i == 0 {
					_, _ = conn.Exec(t.Context(), `set enable_seqscan = off; set enable_bitmapscan = off`)
				} else {
					_, _ = conn.Exec(t.Context(), `set enable_indexscan = off; set enable_bitmapscan = off; set enable_indexonlyscan = off`)
				}
				tx, err := conn.Begin(t.Context())
				assert.NoError(t, err)
				_, err = config.Forget(t.Context(), tx, "test", ids...)
				assert.NoError(t, err, "no deadlock")
				_ = tx.Rollback(t.Context())
			})
		}
		wg.Wait()
	}
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
	for g := range 3 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				assert.NoError(t, deliver(t, h, versioned(ids[(i*3+g)%300], fmt.Sprint("card", i%7), fmt.Sprint(i))))
			}
		})
	}
	for range 10 {
		_, err := w.forget(config, "", ids...)
		assert.NoError(t, err)
	}
	close(stop)
	wg.Wait()
}
