package middleware_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
)

func TestExactlyOneTransactionIsThere(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			_, isPgx := once.PgxTx(msg.Context())
			_, isSQL := once.SQLTx(msg.Context())
			require.Equal(t, w.driver == "pgx", isPgx)
			require.Equal(t, w.driver != "pgx", isSQL)
			return nil, nil
		})
		require.NoError(t, deliver(t, h, newMessage("event")))
	})
}

func TestNothingOutsideAHandler(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	_, ok := once.PgxTx(ctx)
	require.False(t, ok)
	_, ok = once.SQLTx(ctx)
	require.False(t, ok)
	require.Empty(t, once.EventID(ctx))
	key, ok := once.IdempotencyKey(ctx, "charge")
	require.False(t, ok)
	require.Empty(t, key)
	id, ok := once.DeriveUUID(ctx, "mail")
	require.False(t, ok)
	require.Empty(t, id)
	require.ErrorIs(t, once.Queue(ctx, `select 1`), outbox.ErrNoTransaction)
}

func TestPgxTxIsManaged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	var leaked, leakedSavepoint pgx.Tx
	var leakedCtx context.Context
	h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		tx, _ := once.PgxTx(ctx)
		require.ErrorIs(t, tx.Commit(ctx), once.ErrTxManaged)
		require.ErrorIs(t, tx.Rollback(ctx), once.ErrTxManaged)
		require.NotNil(t, tx.Conn())
		savepoint, err := tx.Begin(ctx)
		require.NoError(t, err)
		leaked, leakedSavepoint, leakedCtx = tx, savepoint, ctx
		return apply(msg) // the transaction goes on
	})
	require.NoError(t, deliver(t, h, newMessage("event")))
	require.Equal(t, 1, w.effects())

	for _, tx := range []pgx.Tx{leaked, leakedSavepoint} {
		ctx := t.Context()
		_, err := tx.Exec(ctx, `select 1`)
		require.ErrorIs(t, err, pgx.ErrTxClosed)
		rows, err := tx.Query(ctx, `select 1`)
		require.ErrorIs(t, err, pgx.ErrTxClosed)
		require.False(t, rows.Next())
		require.ErrorIs(t, rows.Err(), pgx.ErrTxClosed)
		require.ErrorIs(t, tx.QueryRow(ctx, `select 1`).Scan(new(int)), pgx.ErrTxClosed)
		_, err = tx.Begin(ctx)
		require.ErrorIs(t, err, pgx.ErrTxClosed)
		require.ErrorIs(t, tx.Commit(ctx), pgx.ErrTxClosed)
		require.ErrorIs(t, tx.Rollback(ctx), pgx.ErrTxClosed)
		var batch pgx.Batch
		batch.Queue(`select 1`)
		require.ErrorIs(t, tx.SendBatch(ctx, &batch).Close(), pgx.ErrTxClosed)
		_, err = tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"event_id"}, pgx.CopyFromRows([][]any{{"x"}}))
		require.ErrorIs(t, err, pgx.ErrTxClosed)
		_, err = tx.Prepare(ctx, "x", `select 1`)
		require.ErrorIs(t, err, pgx.ErrTxClosed)
		require.Nil(t, tx.Conn())
	}
	require.ErrorIs(t, once.Queue(leakedCtx, `select 1`), outbox.ErrNoTransaction)
	require.Equal(t, 1, w.effects())
}

func TestSQLTxIsManaged(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"sql-pgx", "sql-pq"} {
		w := newWorld(t, driver)
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			ctx := msg.Context()
			for _, end := range []string{"commit", "rollback"} {
				tx, _ := once.SQLTx(ctx)
				same, _ := once.SQLTx(ctx)
				require.Same(t, tx, same)
				if end == "commit" {
					require.ErrorIs(t, tx.Commit(), once.ErrTxManaged)
				} else {
					require.ErrorIs(t, tx.Rollback(), once.ErrTxManaged)
				}
				fresh, ok := once.SQLTx(ctx)
				require.True(t, ok)
				require.NotSame(t, tx, fresh)
				_, err := apply(msg)
				require.NoError(t, err)
			}
			// What a handler leaves open is closed for it.
			tx, _ := once.SQLTx(ctx)
			_, err := tx.PrepareContext(ctx, `select 1`)
			require.NoError(t, err)
			_, err = tx.QueryContext(ctx, `select generate_series(1, 100000)`)
			require.NoError(t, err)
			return nil, nil
		})
		require.NoError(t, deliver(t, h, newMessage("event")))
		require.Equal(t, 2, w.effects())
	}
}

func TestPgxRowsLeftOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
		_, err := apply(msg)
		require.NoError(t, err)
		tx, _ := once.PgxTx(msg.Context())
		_, err = tx.Query(msg.Context(), `select generate_series(1, 1000000)`)
		return nil, err
	})
	require.ErrorContains(t, deliver(t, h, newMessage("event")), "left a query open")
	w.requireNothing()
	w.idle()
}

func TestQueueTravelsWithCommit(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			ctx := msg.Context()
			for _, note := range []string{"first", "second"} {
				require.NoError(t, once.Queue(ctx, `insert into effects (event_id, note) values ($1, $2)`, once.EventID(ctx), note))
			}
			return nil, once.Queue(ctx, `update effects set note = note || '!' where note = $1`, "second")
		})
		require.NoError(t, deliver(t, h, newMessage("event")))
		require.Equal(t, 2, w.effects())
		require.Equal(t, 1, w.count(`select count(*) from effects where id = 2 and note = 'second!'`))
	})
}

func TestQueuedWriteFails(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		for query, c := range map[string]struct {
			args   []any
			poison bool
		}{
			`insert into effects (event_id) values (null)`:        {nil, true},
			`insert into effects (event_id, id) values ('x', $1)`: {[]any{struct{ A chan int }{}}, true},
			`insert into nowhere values (1)`:                      {nil, false}, // a forgotten migration
			`nonsense`:                                            {nil, false},
		} {
			h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
				_, err := apply(msg)
				return nil, errors.Join(err, once.Queue(msg.Context(), query, c.args...))
			})
			err := deliver(t, h, newMessage("event"))
			require.Error(t, err, query)
			require.NotErrorIs(t, err, once.ErrCommitUnknown, query)
			require.Equal(t, c.poison, once.ShouldPoison(err), query)
			w.requireNothing()
		}
		w.idle()
	})
}

func TestEmptyQueryIsRefused(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			return nil, once.Queue(msg.Context(), " \n")
		})
		require.ErrorContains(t, deliver(t, h, newMessage("event")), "empty")
	})
}

// What was published or queued under a savepoint vanishes with it.
func TestSavepointTakesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	publisher := newPublisher(t)
	h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		tx, _ := once.PgxTx(ctx)
		leave := func(tx pgx.Tx, name string) {
			_, err := tx.Exec(ctx, `insert into effects (event_id, note) values ('own', $1)`, name)
			require.NoError(t, err)
			require.NoError(t, once.Queue(ctx, `insert into effects (event_id, note) values ('queued', $1)`, name))
			mail := newMessage(name)
			mail.SetContext(ctx)
			require.NoError(t, publisher.Publish("mails", mail))
		}
		leave(tx, "outside")
		kept, err := tx.Begin(ctx)
		require.NoError(t, err)
		leave(kept, "kept")
		inner, err := kept.Begin(ctx)
		require.NoError(t, err)
		leave(inner, "inner")
		require.NoError(t, inner.Rollback(ctx))
		require.ErrorIs(t, inner.Rollback(ctx), pgx.ErrTxClosed)
		require.NoError(t, kept.Commit(ctx))
		require.ErrorContains(t, pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			leave(tx, "dropped")
			return errors.New("drop it")
		}), "drop it")
		return nil, nil
	})
	require.NoError(t, deliver(t, h, newMessage("event")))
	require.Equal(t, 4, w.effects())
	require.Equal(t, 4, w.count(`select count(*) from effects where note in ('outside', 'kept')`))
	require.Equal(t, 2, w.outbox())
	require.Equal(t, 2, w.count(`select count(*) from watermill_outbox where uuid in ('outside', 'kept')`))
}

// Pinned: users store these keys at other services, so that they may never change.
func TestIdempotencyKey(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		keys := map[string]bool{}
		ids := map[string]bool{}
		for _, c := range [][3]string{{"a", "bc", "charge"}, {"ab", "c", "charge"}, {"a", "bc", "refund"}} {
			for range 2 { // the same on every run
				h := w.consume(once.Config{Consumer: c[0]}, func(msg *message.Message) ([]*message.Message, error) {
					key, ok := once.IdempotencyKey(msg.Context(), c[2])
					require.True(t, ok)
					keys[key] = true
					id, ok := once.DeriveUUID(msg.Context(), c[2])
					require.True(t, ok)
					require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, id)
					ids[id] = true
					return nil, errors.New("once more")
				})
				require.Error(t, deliver(t, h, newMessage(c[1])))
			}
		}
		require.Len(t, keys, 3)
		require.Len(t, ids, 3)
		want := sha256.Sum256([]byte("\x00\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x00\x00\x00\x00\x00\x02bc\x00\x00\x00\x00\x00\x00\x00\x06charge"))
		require.Contains(t, keys, hex.EncodeToString(want[:]))
	})
}

func TestIdempotencyKeyForAPlainHandler(t *testing.T) {
	t.Parallel()
	key, err := once.IdempotencyKeyFor("a", "bc", "charge")
	require.NoError(t, err)
	want := sha256.Sum256([]byte("\x00\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x00\x00\x00\x00\x00\x02bc\x00\x00\x00\x00\x00\x00\x00\x06charge"))
	require.Equal(t, hex.EncodeToString(want[:]), key, "as behind the middleware")
	other, err := once.IdempotencyKeyFor("ab", "c", "charge")
	require.NoError(t, err)
	require.NotEqual(t, key, other)

	key, err = once.IdempotencyKeyFor("a", "", "charge")
	require.ErrorIs(t, err, dedupe.ErrMissingKey)
	require.True(t, once.IsPermanent(err))
	require.True(t, once.ShouldPoison(err))
	require.Empty(t, key)
	key, err = once.IdempotencyKeyFor("", "bc", "charge")
	require.ErrorIs(t, err, once.ErrNoConsumer)
	require.EqualError(t, err, "middleware: idempotency key: the consumer is empty")
	require.False(t, once.ShouldPoison(err), "a fault of the program")
	require.Empty(t, key)
}
