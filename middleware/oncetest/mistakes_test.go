package oncetest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/middleware/oncetest"
)

type handler = func(ctx context.Context, db oncetest.Database, c change, msg *message.Message) error

// inTx runs f in a transaction.
func inTx(ctx context.Context, db oncetest.Database, f func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, db.Pool, f)
}

// claim inserts a key. False: it was there.
func claim(ctx context.Context, tx interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, key string) (fresh bool, err error) {
	var n int
	err = tx.QueryRow(ctx, `
		with claimed as (insert into processed (key) values ($1) on conflict do nothing returning 1)
		select count(*) from claimed`, key).Scan(&n)
	return n == 1, err
}

func withdraw(ctx context.Context, tx pgx.Tx, c change) error {
	_, err := tx.Exec(ctx, `update cards set balance = balance - $2 where card = $1`, c.Card, c.Amount)
	return err
}

func setStatus(ctx context.Context, tx pgx.Tx, c change) error {
	_, err := tx.Exec(ctx, `update cards set status = $2 where card = $1`, c.Card, c.Status)
	return err
}

// claimed is the right way by hand, with a key of the caller's.
func claimed(key func(c change, msg *message.Message) string, work func(ctx context.Context, tx pgx.Tx, c change) error) handler {
	return func(ctx context.Context, db oncetest.Database, c change, msg *message.Message) error {
		return inTx(ctx, db, func(tx pgx.Tx) error {
			fresh, err := claim(ctx, tx, key(c, msg))
			if err != nil || !fresh {
				return err
			}
			return work(ctx, tx, c)
		})
	}
}

func eventID(c change, _ *message.Message) string { return c.ID }

func TestTheRightHandlerByHandPasses(t *testing.T) {
	t.Parallel()
	config := oncetest.Config{Position: position, Runs: 20}
	config.Prove(t, by(claimed(eventID, withdraw)), history()[:2])
}

func TestCheckThenInsertIsCaught(t *testing.T) {
	t.Parallel()
	setup := by(func(ctx context.Context, db oncetest.Database, c change, _ *message.Message) error {
		return inTx(ctx, db, func(tx pgx.Tx) error {
			var seen bool
			err := tx.QueryRow(ctx, `select exists (select from processed where key = $1)`, c.ID).Scan(&seen)
			if err != nil || seen {
				return err
			}
			if err := withdraw(ctx, tx, c); err != nil {
				return err
			}
			_, err = claim(ctx, tx, c.ID)
			return err
		})
	})
	report := caught(t, func(t testing.TB) { oncetest.Concurrent(t, setup, history()) })
	require.Len(t, sequence(report), 1)
	require.Contains(t, report, ", 4 times at once")
	require.Contains(t, report, "column balance: undisturbed")
	oncetest.Replay(t, setup, history())
}

func TestAClaimOutsideTheTransactionIsCaught(t *testing.T) {
	t.Parallel()
	setup := by(func(ctx context.Context, db oncetest.Database, c change, _ *message.Message) error {
		fresh, err := claim(ctx, db.Pool, c.ID)
		if err != nil || !fresh {
			return err
		}
		return inTx(ctx, db, func(tx pgx.Tx) error { return withdraw(ctx, tx, c) })
	})
	report := caught(t, func(t testing.TB) { oncetest.Crash(t, setup, history()) })
	require.Len(t, sequence(report), 2)
	require.Contains(t, report, "(card=card-")
	oncetest.Concurrent(t, setup, history())
}

func TestTheObjectsIDAsKeyIsCaught(t *testing.T) {
	t.Parallel()
	setup := by(claimed(func(c change, _ *message.Message) string { return c.Card }, withdraw))
	report := caught(t, func(t testing.TB) { oncetest.Config{Position: position}.OutOfOrder(t, setup, history()) })
	require.Len(t, sequence(report), 2)
	require.Contains(t, report, "cards (card=card-1), column balance: undisturbed 9")
}

func TestAKeyMadeOfTheDeliveryIsCaught(t *testing.T) {
	t.Parallel()
	setup := by(claimed(func(_ change, msg *message.Message) string { return msg.Metadata["delivery"] }, withdraw))
	n := 0
	config := oncetest.Config{Redeliver: func(msg *message.Message) *message.Message {
		n++
		msg.Metadata.Set("delivery", fmt.Sprint(n))
		return msg
	}}
	events := history()[:1]
	events[0].Metadata.Set("delivery", "0")
	report := caught(t, func(t testing.TB) { config.Replay(t, setup, events) })
	require.Equal(t, []string{`event 1 (UUID "evt-1")`, `event 1 (UUID "evt-1") again`}, sequence(report))
	require.Contains(t, report, "cards (card=card-1), column balance: before 990, after 980")
}

func TestADeltaWithoutAClaimIsCaught(t *testing.T) {
	t.Parallel()
	setup := by(func(ctx context.Context, db oncetest.Database, c change, _ *message.Message) error {
		return inTx(ctx, db, func(tx pgx.Tx) error { return withdraw(ctx, tx, c) })
	})
	report := caught(t, func(t testing.TB) { oncetest.Replay(t, setup, history()) })
	require.Equal(t, []string{`event 1 (UUID "evt-1")`, `event 1 (UUID "evt-1") again`}, sequence(report))
	require.Contains(t, report, "cards (card=card-1), column balance: before 990, after 980")
	require.Contains(t, report, "seed ")
}

func TestAnUpsertWithoutTheVersionGuardIsCaught(t *testing.T) {
	t.Parallel()
	setup := by(claimed(eventID, setStatus))
	report := caught(t, func(t testing.TB) { oncetest.Config{Position: position}.OutOfOrder(t, setup, history()) })
	require.Len(t, sequence(report), 2)
	require.Contains(t, report, "cards (card=card-1), column status: undisturbed ")
	oncetest.Replay(t, setup, history())
}

func TestAVersionComparedWithLessOrEqualIsCaught(t *testing.T) {
	t.Parallel()
	guarded := func(operator string) oncetest.Setup {
		return by(func(ctx context.Context, db oncetest.Database, c change, _ *message.Message) error {
			_, err := db.Pool.Exec(ctx, `
				update cards set status = $2, version = $3, updated_at = now()
				where card = $1 and version `+operator+` $3`, c.Card, c.Status, c.Version)
			return err
		})
	}
	report := caught(t, func(t testing.TB) { oncetest.Replay(t, guarded("<="), history()) })
	require.Equal(t, []string{`event 1 (UUID "evt-1")`, `event 1 (UUID "evt-1") again`}, sequence(report))
	require.Contains(t, report, "cards (card=card-1), column updated_at: before ")

	config := oncetest.Config{Position: position}
	config.Prove(t, guarded("<"), history()[:2])
}

// An older event that comes again, late, brings the old state back.
func TestALateReplayIsCaught(t *testing.T) {
	t.Parallel()
	setup := by(func(ctx context.Context, db oncetest.Database, c change, _ *message.Message) error {
		return inTx(ctx, db, func(tx pgx.Tx) error { return setStatus(ctx, tx, c) })
	})
	report := caught(t, func(t testing.TB) { oncetest.Replay(t, setup, history()) })
	require.Len(t, sequence(report), 3)
	require.Contains(t, report, "column status: before closed, after ")
}

func TestASecondMailIsCaught(t *testing.T) {
	t.Parallel()
	setup := by(func(ctx context.Context, db oncetest.Database, c change, msg *message.Message) error {
		if err := claimed(eventID, withdraw)(ctx, db, c, msg); err != nil {
			return err
		}
		return db.Broker.Publish("mails", message.NewMessage("mail-of-"+c.ID, []byte("hello")))
	})
	report := caught(t, func(t testing.TB) { oncetest.Replay(t, setup, history()) })
	require.Equal(t, []string{`event 1 (UUID "evt-1")`, `event 1 (UUID "evt-1") again`}, sequence(report))
	require.Contains(t, report, `a message left: topic "mails", UUID "mail-of-evt-1", payload hello`)

	oncetest.Config{Resends: true}.Replay(t, setup, history())
}

// What the handler returns is published after its transaction has committed.
func TestAMessageLostAfterTheCommitIsCaught(t *testing.T) {
	t.Parallel()
	setup := func(t testing.TB, db oncetest.Database) message.HandlerFunc {
		_, err := db.Pool.Exec(t.Context(), tables)
		require.NoError(t, err)
		return func(msg *message.Message) (produced []*message.Message, err error) {
			return produced, inTx(msg.Context(), db, func(tx pgx.Tx) error {
				fresh, err := claim(msg.Context(), tx, msg.UUID)
				if fresh {
					produced = []*message.Message{message.NewMessage("mail-of-"+msg.UUID, nil)}
				}
				return err
			})
		}
	}
	report := caught(t, func(t testing.TB) { oncetest.Crash(t, setup, history()) })
	require.Len(t, sequence(report), 2)
	require.Contains(t, report, `a message did not leave: topic "produced", UUID "mail-of-evt-`)
	oncetest.Replay(t, setup, history())
}

// The same by hand. After its death the process goes on here, and finds the COMMIT failed; what it publishes then is not to count.
func TestAMessagePublishedAfterTheCommitIsCaught(t *testing.T) {
	t.Parallel()
	setup := by(func(ctx context.Context, db oncetest.Database, c change, _ *message.Message) error {
		duplicate := false
		err := inTx(ctx, db, func(tx pgx.Tx) error {
			fresh, err := claim(ctx, tx, c.ID)
			duplicate = err == nil && !fresh
			return err
		})
		if duplicate {
			return err
		}
		return errors.Join(err, db.Broker.Publish("mails", message.NewMessage("mail-of-"+c.ID, nil)))
	})
	report := caught(t, func(t testing.TB) { oncetest.Crash(t, setup, history()[:2]) })
	require.Equal(t, []string{
		`event 1 (UUID "evt-1"): the process dies when PostgreSQL has done: commit`, `event 1 (UUID "evt-1") again`,
	}, sequence(report))
}

// A message that is returned and not yet published is lost where the next delivery is taken for a duplicate.
func TestAMarkBeforeThePublishingIsCaught(t *testing.T) {
	t.Parallel()
	setup := func(testing.TB, oncetest.Database) message.HandlerFunc {
		seen := memory{}
		return func(msg *message.Message) ([]*message.Message, error) {
			if duplicate, _ := seen.IsDuplicate(msg.Context(), msg.UUID); duplicate {
				return nil, nil
			}
			return []*message.Message{message.NewMessage("mail-of-"+msg.UUID, nil)}, nil
		}
	}
	report := caught(t, func(t testing.TB) { oncetest.Crash(t, setup, history()) })
	require.Equal(t, []string{
		`event 1 (UUID "evt-1"): the process dies when the handler has returned, before its messages are published`, `event 1 (UUID "evt-1") again`,
	}, sequence(report))
}

// Watermill's own Deduplicator marks the message before its handler has run.
func TestAMarkBeforeTheWorkIsCaught(t *testing.T) {
	t.Parallel()
	work := by(func(ctx context.Context, db oncetest.Database, c change, _ *message.Message) error {
		return inTx(ctx, db, func(tx pgx.Tx) error { return withdraw(ctx, tx, c) })
	})
	setup := func(t testing.TB, db oncetest.Database) message.HandlerFunc {
		return (&wmiddleware.Deduplicator{Repository: memory{}}).Middleware(work(t, db))
	}
	report := caught(t, func(t testing.TB) { oncetest.Crash(t, setup, history()) })
	require.Len(t, sequence(report), 2)
	oncetest.Replay(t, setup, history())
}

// memory is a Deduplicator's that needs no goroutine.
type memory map[string]bool

func (m memory) IsDuplicate(_ context.Context, key string) (bool, error) {
	seen := m[key]
	m[key] = true
	return seen, nil
}

// A broken connection is logged, and the message acked.
func TestASwallowedErrorIsCaught(t *testing.T) {
	t.Parallel()
	setup := by(func(ctx context.Context, db oncetest.Database, c change, msg *message.Message) error {
		_ = claimed(eventID, withdraw)(ctx, db, c, msg)
		return nil
	})
	report := caught(t, func(t testing.TB) { oncetest.Crash(t, setup, history()) })
	require.Len(t, sequence(report), 2)
	require.Contains(t, report, "the connection breaks when PostgreSQL has done: begin")
}

// A COMMIT whose answer was lost is run again.
func TestARetryOfACommitIsCaught(t *testing.T) {
	t.Parallel()
	setup := by(func(ctx context.Context, db oncetest.Database, c change, _ *message.Message) (err error) {
		for range 3 {
			if err = inTx(ctx, db, func(tx pgx.Tx) error { return withdraw(ctx, tx, c) }); err == nil {
				return nil
			}
		}
		return err
	})
	report := caught(t, func(t testing.TB) { oncetest.Crash(t, setup, history()) })
	require.Contains(t, report, "column balance")
}

func TestAHandlerThatAcksItselfIsCaught(t *testing.T) {
	t.Parallel()
	setup := by(func(ctx context.Context, db oncetest.Database, c change, msg *message.Message) error {
		msg.Ack()
		return claimed(eventID, withdraw)(ctx, db, c, msg)
	})
	for _, prove := range []func(testing.TB, oncetest.Setup, []*message.Message){oncetest.Replay, oncetest.Crash, oncetest.Concurrent, oncetest.OutOfOrder} {
		report := caught(t, func(t testing.TB) { prove(t, setup, history()) })
		require.Contains(t, report, "the handler acked its message by itself")
		require.Len(t, sequence(report), 1)
	}
}

func TestAHandlerThatFailsIsCaught(t *testing.T) {
	t.Parallel()
	for text, fail := range map[string]func(msg *message.Message) error{
		"the handler panicked: oh at ":             func(*message.Message) error { panic("oh") },
		"the handler returned an error: oh":        func(*message.Message) error { return errors.New("oh") },
		"the handler nacked its message by itself": func(msg *message.Message) error { msg.Nack(); return nil },
		"the handler ended its goroutine":          func(*message.Message) error { runtime.Goexit(); return nil },
	} {
		setup := by(func(ctx context.Context, db oncetest.Database, c change, msg *message.Message) error {
			if c.Version == 3 {
				return fail(msg)
			}
			return claimed(eventID, withdraw)(ctx, db, c, msg)
		})
		report := caught(t, func(t testing.TB) { oncetest.Replay(t, setup, history()) })
		require.Contains(t, report, text)
		require.Equal(t, []string{`event 4 (UUID "evt-4")`}, sequence(report))
	}
}

func TestAHandlerThatHangsIsCaught(t *testing.T) {
	t.Parallel()
	setup := by(func(ctx context.Context, _ oncetest.Database, _ change, _ *message.Message) error {
		<-ctx.Done()
		return ctx.Err()
	})
	report := caught(t, func(t testing.TB) { oncetest.Config{Timeout: 50 * time.Millisecond}.Replay(t, setup, history()[:1]) })
	require.Contains(t, report, "the handler did not return within 50ms")
}

func TestAHandlerThatDoesNothingProvesNothing(t *testing.T) {
	t.Parallel()
	setup := by(func(context.Context, oncetest.Database, change, *message.Message) error { return nil })
	require.Contains(t, caught(t, func(t testing.TB) { oncetest.Replay(t, setup, history()) }), "nothing is proven")
}

// A handler that changes its message changes no other delivery.
func TestDeliveriesShareNothing(t *testing.T) {
	t.Parallel()
	setup := func(t testing.TB, db oncetest.Database) message.HandlerFunc {
		handle := by(claimed(eventID, withdraw))(t, db)
		return func(msg *message.Message) ([]*message.Message, error) {
			_, err := handle(msg)
			clear(msg.Payload)
			clear(msg.Metadata)
			return nil, err
		}
	}
	oncetest.Replay(t, setup, history())
}
