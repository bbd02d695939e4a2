package middleware_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/internal/tcpproxy"
	once "github.com/watermill-once/watermill-once/middleware"
)

// throughProxy puts a proxy between the handlers and PostgreSQL.
func (w *world) throughProxy() *tcpproxy.Proxy {
	w.t.Helper()
	proxy, url := pgtest.Proxy(w.t, w.url)
	w.db = w.open(url)
	return proxy
}

// The answer to COMMIT is cut off: the handler's work is there, the middleware does not know, and the redelivery finds out.
func TestCommitUnknownThoughCommitted(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		proxy := w.throughProxy()
		var armed atomic.Bool
		proxy.OnData(func(direction tcpproxy.Direction, data []byte) bool {
			return !(armed.Load() && direction == tcpproxy.FromServer && bytes.Contains(data, []byte("COMMIT\x00")))
		})
		var seen recorder
		calls := 0
		h := w.consume(once.Config{OnOutcome: seen.record}, func(msg *message.Message) ([]*message.Message, error) {
			calls++
			armed.Store(calls == 1)
			return apply(msg)
		})
		err := deliver(t, h, newMessage("event"))
		require.ErrorIs(t, err, once.ErrCommitUnknown)
		require.False(t, once.IsPermanent(err))
		require.False(t, once.ShouldPoison(err))
		require.Equal(t, 1, seen.outcomes[0].Attempts, "never run again by itself")
		armed.Store(false)

		require.Equal(t, 1, w.effects())
		require.NoError(t, deliver(t, h, newMessage("event")))
		require.Equal(t, 1, calls, "the claim decides")
		require.Equal(t, once.Duplicate, seen.outcomes[1].Kind)
	})
}

// COMMIT itself is cut off on its way: nothing is there.
func TestCommitUnknownAndNotCommitted(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		proxy := w.throughProxy()
		var armed atomic.Bool
		proxy.OnData(func(direction tcpproxy.Direction, _ []byte) bool {
			return !(armed.Load() && direction == tcpproxy.ToServer)
		})
		require.NoError(t, deliver(t, w.consume(once.Config{}, apply), newMessage("warm-up"))) // COMMIT is prepared
		calls := 0
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			calls++
			_, err := apply(msg)
			if w.driver != "sql-pq" { // whose next statement would not be COMMIT but the look at the transaction
				armed.Store(calls == 1)
			}
			return nil, err
		})
		if w.driver == "sql-pq" {
			proxy.OnData(func(direction tcpproxy.Direction, data []byte) bool {
				return !(direction == tcpproxy.ToServer && calls == 1 && bytes.Contains(data, []byte("commit\x00")))
			})
		}
		require.ErrorIs(t, deliver(t, h, newMessage("event")), once.ErrCommitUnknown)
		armed.Store(false)
		require.Equal(t, 1, w.effects(), "of the warm-up")
		require.NoError(t, deliver(t, h, newMessage("event")))
		require.Equal(t, 2, calls)
		require.Equal(t, 2, w.effects())
	})
}

// A backend that is ended in the middle of COMMIT says FATAL: from outside nobody can tell whether the commit was written.
func TestFatalInCommitIsUnknown(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		w.deferred(`perform pg_terminate_backend(pg_backend_pid())`)
		err := deliver(t, w.consume(once.Config{}, apply), newMessage("event"))
		require.ErrorIs(t, err, once.ErrCommitUnknown)
		require.False(t, once.ShouldPoison(err))
		w.requireNothing()
	})
}

func TestCommitRefusedIsKnown(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		w.deferred(`raise exception 'not this one' using errcode = '23514'`)
		err := deliver(t, w.consume(once.Config{}, apply), newMessage("event"))
		require.Error(t, err)
		require.NotErrorIs(t, err, once.ErrCommitUnknown)
		require.True(t, once.ShouldPoison(err))
		w.requireNothing()
		w.idle()
	})
}

// Refused by the user's own trigger, whatever its SQLSTATE: for the poison queue, as the same refusal at once would be.
func TestCommitRefusedByATrigger(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		w.deferred(`raise exception 'balance must not be negative'`)
		err := deliver(t, w.consume(once.Config{Outbox: newPublisher(t)}, func(msg *message.Message) ([]*message.Message, error) {
			_, err := apply(msg)
			return nil, err
		}), newMessage("event"))
		require.ErrorContains(t, err, "negative")
		require.True(t, once.ShouldPoison(err))
		w.requireNothing()
	})
}

// An outbox that takes nothing, since it is not there or its sequence is behind it, is a fault of the installation, and of no message.
func TestAnOutboxThatTakesNothingPoisonsNothing(t *testing.T) {
	for name, ddl := range map[string]string{
		"missing":  `drop table watermill_outbox`,
		"restored": `insert into watermill_outbox ("offset", uuid, topic, key) select i, i, 't', i from generate_series(1, 9) as i`,
	} {
		t.Run(name, func(t *testing.T) { poisonsNothing(t, ddl) })
	}
}

func poisonsNothing(t *testing.T, ddl string) {
	eachDB(t, func(t *testing.T, w *world) {
		_, err := w.pool.Exec(t.Context(), ddl)
		require.NoError(t, err)
		publisher := newPublisher(t)
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			if err := once.Queue(msg.Context(), `insert into effects (event_id) values ('x')`); err != nil {
				return nil, err
			}
			return nil, publisher.PublishContext(msg.Context(), "mails", newMessage("mail"))
		})
		err = deliver(t, h, newMessage("event"))
		require.ErrorContains(t, err, "watermill_outbox")
		require.False(t, once.ShouldPoison(err))
		require.Zero(t, w.effects())
	})
}

// In the simple protocol a text may hold several statements, and has as many results.
func TestQueuedTextOfSeveralStatements(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "sql-pgx"} {
		w := newWorld(t, driver)
		w.db = w.open(w.url + "&default_query_exec_mode=simple_protocol")
		for query, effects := range map[string]int{
			`insert into effects (event_id) values ('a'); insert into effects (event_id) values ('b')`: 2,
			`-- nothing`: 0,
		} {
			before := w.effects()
			h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
				return nil, once.Queue(msg.Context(), query)
			})
			require.NoError(t, deliver(t, h, newMessage(query)), query)
			require.Equal(t, before+effects, w.effects(), query)
		}
	}
}

func TestConflictAtCommitIsRunAgain(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		_, err := w.pool.Exec(t.Context(), `create sequence conflicts`)
		require.NoError(t, err)
		w.deferred(`if nextval('conflicts') < 3 then raise exception 'conflict' using errcode = '40001'; end if`)
		var seen recorder
		require.NoError(t, deliver(t, w.consume(once.Config{OnOutcome: seen.record}, apply), newMessage("event")))
		require.Equal(t, 3, seen.outcomes[0].Attempts)
		require.Equal(t, 1, w.effects())
	})
}

// deferred makes COMMIT run a PL/pgSQL statement once for each row of effects.
func (w *world) deferred(statement string) {
	w.t.Helper()
	_, err := w.pool.Exec(w.t.Context(), `
		create function at_commit() returns trigger language plpgsql as $$ begin `+statement+`; return null; end $$;
		create constraint trigger at_commit after insert on effects deferrable initially deferred
			for each row execute function at_commit()`)
	require.NoError(w.t, err)
}

// Locks are waited for inside the COMMIT batch too, and a wait that runs out is an ordinary, passing error.
func TestLockTimeout(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		config := once.Config{LockTimeout: 50 * time.Millisecond}
		tx, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(t.Context())
		_, err = tx.Exec(t.Context(), `insert into watermill_processed_events (consumer, event_id) values ('test', 'event')`)
		require.NoError(t, err)

		err = deliver(t, w.consume(config, apply), newMessage("event"))
		require.ErrorContains(t, err, "lock timeout")
		require.False(t, once.IsPermanent(err))
		require.False(t, once.ShouldPoison(err))

		_, err = tx.Exec(t.Context(), `insert into effects (id, event_id) values (77, 'other')`)
		require.NoError(t, err)
		err = deliver(t, w.consume(config, func(msg *message.Message) ([]*message.Message, error) {
			return nil, once.Queue(msg.Context(), `insert into effects (id, event_id) values (77, 'mine')`)
		}), newMessage("event-2"))
		require.ErrorContains(t, err, "lock timeout")
		require.NotErrorIs(t, err, once.ErrCommitUnknown)
		require.False(t, once.ShouldPoison(err))
		require.NoError(t, tx.Rollback(t.Context()))
		w.requireNothing()
		w.idle()
	})
}

func TestConnectionLostInTheHandler(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		for name, swallow := range map[string]bool{"reported": false, "swallowed": true} {
			h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
				err := exec(msg.Context(), `select pg_terminate_backend(pg_backend_pid())`)
				require.Error(t, err)
				if swallow {
					return nil, nil
				}
				return nil, errors.New("unexpected EOF") // as a driver may put it
			})
			err := deliver(t, h, newMessage("event"))
			require.Error(t, err, name)
			require.NotErrorIs(t, err, once.ErrCommitUnknown, name)
			require.False(t, once.ShouldPoison(err), name)
		}
		w.requireNothing()
		require.NoError(t, deliver(t, w.consume(once.Config{}, apply), newMessage("event")))
	})
}

// A pool whose hook fails gives no connection, whatever the SQLSTATE: no transaction is begun, and the tries are bounded.
func TestNoConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	config, err := pgxpool.ParseConfig(w.url)
	require.NoError(t, err)
	tries := 0
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		tries++
		_, err := conn.Exec(ctx, `execute no_such_statement`)
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	w.db = once.Pgx(pool)
	var seen recorder
	err = deliver(t, w.consume(once.Config{OnOutcome: seen.record}, apply), newMessage("event"))
	require.ErrorContains(t, err, "no_such_statement")
	require.False(t, once.ShouldPoison(err))
	require.Zero(t, seen.outcomes[0].Attempts)
	require.Positive(t, tries)
}

func TestNoDatabaseIsAnOutage(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		proxy := w.throughProxy()
		proxy.Down(true)
		err := deliver(t, w.consume(once.Config{}, apply), newMessage("event"))
		require.Error(t, err)
		require.False(t, once.ShouldPoison(err))
		require.False(t, once.IsPermanent(err))
		proxy.Down(false)
		require.NoError(t, deliver(t, w.consume(once.Config{}, apply), newMessage("event")))
	})
}
