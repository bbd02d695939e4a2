package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/attempt"
	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

// The transaction that begins first, has the lower id, and commits last.
func TestOffsetsOfAKeyGrowInCommitOrder(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})

	early := begin(t, pool)
	_, err := early.Exec(t.Context(), `select pg_current_xact_id()`)
	require.NoError(t, err)
	inTx(t, pool, func(late pgx.Tx) {
		require.NoError(t, p.PublishTx(t.Context(), late, "topic", newMessage("key", "committed first")))
	})
	require.NoError(t, p.PublishTx(t.Context(), early, "topic", newMessage("key", "committed last")))
	require.NoError(t, early.Commit(t.Context()))

	rows := contents(t, pool, outbox.Config{})
	require.Equal(t, "committed first", string(rows[0].Payload))
	require.Equal(t, "committed last", string(rows[1].Payload))
}

// A writer must not draw its offset before the one that has the key has committed.
func TestTheKeysLockIsHeldFromTheOffsetToTheCommit(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	for _, batch := range []int{1, 3, 20} {
		t.Run(fmt.Sprint(batch), func(t *testing.T) {
			messages := func(payload string) []*message.Message {
				msgs := []*message.Message{newMessage("key", payload)}
				for i := range batch - 1 {
					msgs = append(msgs, newMessage(fmt.Sprint("other", i), payload))
				}
				return msgs
			}
			first := begin(t, pool)
			require.NoError(t, p.PublishTx(t.Context(), first, "topic", messages("first")...))

			second := begin(t, pool)
			pid := second.Conn().PgConn().PID()
			done := make(chan error, 1)
			go func() { done <- p.PublishTx(t.Context(), second, "topic", messages("second")...) }()
			eventually(t, "the second writer waits", func() bool {
				var waits bool
				err := pool.QueryRow(t.Context(), `select wait_event = 'advisory' from pg_stat_activity where pid = $1`, pid).Scan(&waits)
				return err == nil && waits
			})
			var drawn int64
			require.NoError(t, pool.QueryRow(t.Context(), `select last_value from watermill_outbox_offset_seq`).Scan(&drawn))
			require.NoError(t, first.Commit(t.Context()))
			require.NoError(t, <-done)
			require.NoError(t, second.Commit(t.Context()))

			rows := contents(t, pool, outbox.Config{})
			require.Equal(t, drawn+1, rows[batch].Offset, "the second writer drew an offset while it waited")
			_, err := pool.Exec(t.Context(), `delete from watermill_outbox`)
			require.NoError(t, err)
		})
	}
}

func TestATransactionHasItsIDBeforeItsOffset(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	write := map[string]func(tx pgx.Tx) error{
		"one":   func(tx pgx.Tx) error { return p.PublishTx(t.Context(), tx, "topic", newMessage("key", "")) },
		"a few": func(tx pgx.Tx) error { return p.PublishTx(t.Context(), tx, "topic", numbered(3, 2)...) },
		"many":  func(tx pgx.Tx) error { return p.PublishTx(t.Context(), tx, "topic", numbered(20, 2)...) },
		"by hand": func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `insert into watermill_outbox (uuid, topic, key) values ('u', 't', 'k')`)
			return err
		},
	}
	// A function in place of nextval tells whether the transaction had an id when the offset was drawn.
	_, err := pool.Exec(t.Context(), `
		create function draw() returns bigint language plpgsql volatile as $$
		begin
			if pg_current_xact_id_if_assigned() is null then
				raise exception 'offset before id';
			end if;
			return nextval('watermill_outbox_offset_seq');
		end $$;
		alter table watermill_outbox alter "offset" set default draw()`)
	require.NoError(t, err)
	for name, write := range write {
		t.Run(name, func(t *testing.T) {
			for range 7 {
				inTx(t, pool, func(tx pgx.Tx) { require.NoError(t, write(tx)) })
			}
		})
	}
}

func TestOpposedKeyOrdersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	publishers := []*outbox.Publisher{newPublisher(t, outbox.Config{}), newPublisher(t, outbox.Config{Topic: "second"})}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 30 {
				a := &attempt.Attempt{}
				ctx := attempt.NewContext(context.Background(), a)
				for _, i := range rand.Perm(40) {
					err := publishers[i%2].PublishContext(ctx, "topic", newMessage(fmt.Sprint("key", i/2), ""))
					if err != nil {
						t.Error(err)
						return
					}
				}
				_, rows, _ := a.End()
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					var batch pgx.Batch
					for _, s := range attempt.Insert(rows) {
						batch.Queue(s.SQL, s.Args...)
					}
					return tx.SendBatch(ctx, &batch).Close()
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	require.Len(t, contents(t, pool, outbox.Config{}), 8*30*20)
}

// What a reader sees of a key only ever grows at its end.
func TestRowsOfAKeyBecomeVisibleInTheOrderOfTheirOffsets(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	const writers, rounds = 8, 60
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range rounds {
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					if err := p.PublishTx(t.Context(), tx, "topic", numbered(1+rand.N(3), 3)...); err != nil {
						return err
					}
					for range rand.N(5) { // transactions of different length
						if _, err := tx.Exec(t.Context(), `select 1`); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		all.Wait()
	}()
	seen, last := map[int64]bool{}, map[string]int64{}
	for running := true; running; {
		select {
		case <-written:
			running = false
		default:
		}
		for _, row := range contents(t, pool, outbox.Config{}) {
			if !seen[row.Offset] {
				require.Greater(t, row.Offset, last[row.Key], "key %s", row.Key)
				seen[row.Offset], last[row.Key] = true, row.Offset
			}
		}
	}
	require.GreaterOrEqual(t, len(seen), writers*rounds)
}

func TestTwentyThousandKeysInOneTransactionAtDefaultSettings(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	var perTransaction string
	require.NoError(t, pool.QueryRow(t.Context(), `show max_locks_per_transaction`).Scan(&perTransaction))
	require.Equal(t, "64", perTransaction, "the test is about default settings")
	p := newPublisher(t, outbox.Config{})
	msgs := numbered(20_000, 20_000)
	handle(t, pool, nil, func(ctx context.Context) {
		require.NoError(t, p.PublishContext(ctx, "topic", msgs...))
	})
	rows := contents(t, pool, outbox.Config{})
	require.Len(t, rows, len(msgs))
	for i, row := range rows {
		require.Equal(t, msgs[i].UUID, row.UUID)
	}
}

func TestLargeMessagesTravelInSeveralStatements(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	large := make([]byte, 5<<20)
	var msgs []*message.Message
	for i := range 8 {
		msg := newMessage("key", "")
		msg.Payload = append(large[:len(large):len(large)], byte(i))
		msgs = append(msgs, msg)
	}
	inTx(t, pool, func(tx pgx.Tx) { require.NoError(t, p.PublishTx(t.Context(), tx, "topic", msgs...)) })
	rows := contents(t, pool, outbox.Config{})
	require.Len(t, rows, len(msgs))
	for i, row := range rows {
		require.Len(t, row.Payload, len(large)+1)
		require.Equal(t, byte(i), row.Payload[len(large)])
	}
}

func TestWakeReachesTheRelay(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newDatabase(t))
	p := newPublisher(t, outbox.Config{})
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{PollInterval: time.Hour, Wake: p})
	for i := range 3 {
		handle(t, pool, nil, func(ctx context.Context) {
			require.NoError(t, p.PublishContext(ctx, "topic", newMessage("key", fmt.Sprint(i))))
		})
		b.wait(t, 2*i+1)
		inTx(t, pool, func(tx pgx.Tx) { require.NoError(t, p.PublishTx(t.Context(), tx, "topic", newMessage("key", ""))) })
		p.Wake()
		b.wait(t, 2*i+2)
	}
}
