package middleware_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	once "github.com/watermill-once/watermill-once/middleware"
)

// A handler that ends the transaction by itself may have committed its claim, or lost it and commit its work all the same. Both
// must be seen, whether it goes on in another transaction, and whether it succeeds.
func TestTransactionEndedByTheHandler(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		for _, end := range []string{
			"commit", "rollback", "abort", "end",
			"commit and chain", "rollback and chain", "rollback; begin", "commit; begin",
		} {
			for name, result := range map[string]error{"nil": nil, "error": errors.New("later step failed")} {
				id := end + " " + name
				var seen recorder
				h := w.consume(once.Config{OnOutcome: seen.record}, func(msg *message.Message) ([]*message.Message, error) {
					require.NoError(t, exec(msg.Context(), end))
					return nil, result
				})
				err := deliver(t, h, newMessage(id))
				require.ErrorIs(t, err, once.ErrTxEnded, id)
				if result != nil {
					require.ErrorIs(t, err, result, id)
				}
				require.True(t, once.IsPermanent(err), id)
				require.True(t, once.ShouldPoison(err), id)
				require.Equal(t, once.Failed, seen.outcomes[0].Kind, id)
			}
		}
		require.Equal(t, 8, w.claims(), "of those that committed it")
		w.idle()
	})
}

// Our own retry must not find that claim, and ack.
func TestTransactionEndedBeforeAConflict(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		var seen recorder
		h := w.consume(once.Config{OnOutcome: seen.record}, func(msg *message.Message) ([]*message.Message, error) {
			if err := exec(msg.Context(), "commit"); err != nil {
				return nil, err
			}
			return nil, exec(msg.Context(), `do $$ begin raise exception 'conflict' using errcode = '40001'; end $$`)
		})
		require.ErrorIs(t, deliver(t, h, newMessage("event")), once.ErrTxEnded)
		require.Equal(t, 1, seen.outcomes[0].Attempts)
	})
}

func TestTransactionEndedThroughOtherDoors(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(ctx context.Context, tx pgx.Tx, query string) error{
		"Conn": func(ctx context.Context, tx pgx.Tx, query string) error {
			_, err := tx.Conn().Exec(ctx, query)
			return err
		},
		"Query": func(ctx context.Context, tx pgx.Tx, query string) error {
			rows, err := tx.Query(ctx, query)
			if err != nil {
				return err
			}
			rows.Close()
			return rows.Err()
		},
		"SendBatch": func(ctx context.Context, tx pgx.Tx, query string) error {
			batch := &pgx.Batch{}
			batch.Queue(query)
			return tx.SendBatch(ctx, batch).Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "pgx")
			h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
				tx, _ := once.PgxTx(msg.Context())
				require.NoError(t, do(msg.Context(), tx, "rollback"))
				require.NoError(t, do(msg.Context(), tx, "begin"))
				return apply(msg)
			})
			require.ErrorIs(t, deliver(t, h, newMessage("event")), once.ErrTxEnded)
			w.requireNothing()
		})
	}
}

func TestTransactionEndedByAQueuedStatement(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		for _, end := range []string{"rollback", "rollback and chain", "commit"} {
			h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
				if _, err := apply(msg); err != nil {
					return nil, err
				}
				return nil, once.Queue(msg.Context(), end)
			})
			require.ErrorIs(t, deliver(t, h, newMessage(end)), once.ErrTxEnded, end)
		}
		w.idle()
	})
}

// A savepoint that is rolled back takes nothing of the mark with it.
func TestSavepointsDoNotEndTheTransaction(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			for _, query := range []string{"savepoint a", "insert into effects (event_id) values ('dropped')", "rollback to savepoint a", "release savepoint a"} {
				require.NoError(t, exec(msg.Context(), query))
			}
			return apply(msg)
		})
		require.NoError(t, deliver(t, h, newMessage("event")))
		require.Equal(t, 1, w.effects())
	})
}
