package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
)

func TestFreshEventCommitsEverythingTogether(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		var seen recorder
		send := w.route(once.Config{Outbox: newPublisher(t), Ordering: byMetadata, OnOutcome: seen.record},
			func(msg *message.Message) ([]*message.Message, error) {
				_, err := apply(msg)
				return []*message.Message{message.NewMessage("mail-1", []byte("hello"))}, err
			})
		require.NoError(t, send(versioned("event-1", "card-1", "7")))

		require.Equal(t, 1, w.effects())
		require.Equal(t, 1, w.count(`select count(*) from watermill_processed_events where consumer = 'cards' and event_id = 'event-1'`))
		require.Equal(t, 1, w.count(`select count(*) from watermill_entity_versions where consumer = 'cards' and entity = 'card-1' and version = 7`))
		require.Equal(t, 1, w.count(`select count(*) from watermill_outbox where topic = 'mails' and uuid = 'mail-1' and payload = 'hello'`))
		require.Equal(t, 1, w.count(`select count(distinct xmin::text) from (
			select xmin from effects union all select xmin from watermill_processed_events
			union all select xmin from watermill_entity_versions union all select xmin from watermill_outbox) x`))

		require.Len(t, seen.outcomes, 1)
		o := seen.outcomes[0]
		require.Positive(t, o.Duration)
		o.Duration = 0
		require.Equal(t, once.Outcome{Kind: once.Fresh, Consumer: "cards", EventID: "event-1", Attempts: 1}, o)
		w.idle()
	})
}

func TestDuplicateIsAckedUnhandled(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		for _, cache := range []int{0, 10} {
			var seen recorder
			id := fmt.Sprintf("event-cache-%d", cache)
			calls := 0
			h := w.consume(once.Config{Dedupe: dedupe.Config{Cache: cache}, OnOutcome: seen.record},
				func(msg *message.Message) ([]*message.Message, error) { calls++; return apply(msg) })
			for range 3 {
				require.NoError(t, deliver(t, h, newMessage(id)))
			}
			require.Equal(t, 1, calls)
			require.Equal(t, 1, w.count(`select count(*) from effects where event_id = $1`, id))
			require.Len(t, seen.outcomes, 3)
			require.Equal(t, once.Fresh, seen.outcomes[0].Kind)
			for _, o := range seen.outcomes[1:] {
				require.Equal(t, once.Duplicate, o.Kind)
				require.NoError(t, o.Err)
				require.Equal(t, map[int]int{0: 1, 10: 0}[cache], o.Attempts)
			}
		}
		w.idle()
	})
}

// A rolled-back claim must not be remembered: the cache is filled after COMMIT only.
func TestFailedEventIsNotCached(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		fail := true
		h := w.consume(once.Config{Dedupe: dedupe.Config{Cache: 10}}, func(msg *message.Message) ([]*message.Message, error) {
			if fail {
				return nil, errors.New("not today")
			}
			return apply(msg)
		})
		require.EqualError(t, deliver(t, h, newMessage("event")), "not today")
		fail = false
		require.NoError(t, deliver(t, h, newMessage("event")))
		require.Equal(t, 1, w.effects())
	})
}

func TestCopiesAtOnceAreHandledOnce(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		h := w.consume(once.Config{}, apply)
		const copies, events = 4, 10
		var wg sync.WaitGroup
		errs := make(chan error, copies*events)
		for i := range events {
			for range copies {
				wg.Go(func() { errs <- deliver(t, h, newMessage(fmt.Sprintf("event-%d", i))) })
			}
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		require.Equal(t, events, w.effects())
		require.Equal(t, events, w.claims())
	})
}

// The second copy waits for the first, and runs when the first is rolled back.
func TestCopyRunsWhenTheFirstFails(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		var calls atomic.Int32
		entered, fail := make(chan struct{}), make(chan struct{})
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			if calls.Add(1) == 1 {
				close(entered)
				<-fail
				_, _ = apply(msg)
				return nil, errors.New("first copy fails")
			}
			return apply(msg)
		})
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- deliver(t, h, newMessage("event")) }()
		<-entered
		go func() { second <- deliver(t, h, newMessage("event")) }()
		require.Eventually(t, func() bool {
			return w.count(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) == 1
		}, 10*time.Second, 5*time.Millisecond)
		close(fail)
		require.Error(t, <-first)
		require.NoError(t, <-second)
		require.Equal(t, 1, w.effects())
	})
}

func TestScopeIsTheConsumer(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		for _, consumer := range []string{"a", "b", "a"} {
			require.NoError(t, deliver(t, w.consume(once.Config{Consumer: consumer}, apply), newMessage("event")))
		}
		require.Equal(t, 2, w.effects())
	})
}

func TestStaleEventIsAckedAndClaimed(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		var seen recorder
		calls := 0
		h := w.consume(once.Config{Ordering: byMetadata, OnOutcome: seen.record},
			func(msg *message.Message) ([]*message.Message, error) { calls++; return apply(msg) })
		for _, step := range []struct {
			id, version string
			want        once.Kind
		}{
			{"event-2", "2", once.Fresh},
			{"event-1", "1", once.Stale},
			{"event-1", "1", once.Duplicate},
			{"event-2b", "2", once.Stale}, // an equal number is stale
			{"event-3", "3", once.Fresh},
		} {
			require.NoError(t, deliver(t, h, versioned(step.id, "card", step.version)))
			require.Equal(t, step.want, seen.outcomes[len(seen.outcomes)-1].Kind, step.id)
		}
		require.Equal(t, 2, calls)
		require.Equal(t, 2, w.effects())
		require.Equal(t, 4, w.claims())
		require.Equal(t, 1, w.count(`select count(*) from watermill_entity_versions where version = 3`))
		w.idle()
	})
}

func TestTimesAndTieBreaks(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		tied := once.Config{Consumer: "tied", Ordering: ordering.Config{Position: byMetadata.Position.WithTieBreak(dedupe.MessageUUID)}}
		untied := once.Config{Consumer: "untied", Ordering: byMetadata}
		for _, step := range []struct {
			config  once.Config
			id, at  string
			applied bool
		}{
			{untied, "b", "2024-05-01T10:00:00Z", true},
			{untied, "a", "2024-05-01T10:00:00Z", true}, // another event of the same instant
			{untied, "c", "2024-05-01T11:59:59+02:00", false},
			{tied, "b", "2024-05-01T10:00:00Z", true},
			{tied, "a", "2024-05-01T10:00:00Z", false},
			{tied, "c", "2024-05-01T12:00:00+02:00", true},
		} {
			before := w.effects()
			require.NoError(t, deliver(t, w.consume(step.config, apply), versioned(step.id, "card", step.at)))
			require.Equal(t, step.applied, w.effects() > before, "%s %s", step.config.Consumer, step.id)
		}
	})
}

// Two messages of one entity never pass the guard at once: the second waits for the first's transaction.
func TestOneEntityOneHandler(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		var inside, most atomic.Int32
		h := w.consume(once.Config{Ordering: byMetadata}, func(msg *message.Message) ([]*message.Message, error) {
			most.Store(max(most.Load(), inside.Add(1)))
			defer inside.Add(-1)
			return nil, exec(msg.Context(), `select pg_sleep(0.001)`)
		})
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if err := deliver(t, h, versioned(fmt.Sprint(i), "card", fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, most.Load())
		require.Equal(t, 1, w.count(`select count(*) from watermill_entity_versions where version = 19`))
	})
}

func TestHandlerErrorRollsBack(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		var seen recorder
		boom := errors.New("boom")
		fail := true
		h := w.consume(once.Config{Ordering: byMetadata, Outbox: newPublisher(t), OnOutcome: seen.record},
			func(msg *message.Message) ([]*message.Message, error) {
				if _, err := apply(msg); err != nil {
					return nil, err
				}
				if fail {
					return []*message.Message{newMessage("mail")}, boom
				}
				return nil, nil
			})
		require.Equal(t, boom, deliver(t, h, versioned("event", "card", "1")))
		w.requireNothing()
		require.Equal(t, once.Failed, seen.outcomes[0].Kind)
		require.Equal(t, boom, seen.outcomes[0].Err)

		fail = false
		require.NoError(t, deliver(t, h, versioned("event", "card", "1")))
		require.Equal(t, 1, w.effects())
		w.idle()
	})
}

func TestPanicRollsBackAndGoesOn(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		var seen recorder
		h := w.consume(once.Config{OnOutcome: seen.record}, func(msg *message.Message) ([]*message.Message, error) {
			_, _ = apply(msg)
			panic("boom")
		})
		msg := newMessage("event")
		before := msg.Context()
		require.PanicsWithValue(t, "boom", func() { _, _ = h(msg) })
		require.Equal(t, before, msg.Context())
		w.requireNothing()
		require.Len(t, seen.outcomes, 1)
		require.Equal(t, once.Failed, seen.outcomes[0].Kind)
		require.Error(t, seen.outcomes[0].Err)
		w.idle()
	})
}

func TestGoexitRollsBack(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			_, _ = apply(msg)
			runtime.Goexit()
			return nil, nil
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = h(newMessage("event"))
		}()
		<-done
		w.requireNothing()
		w.idle()
	})
}

func TestEndedContextRollsBack(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			_, err := apply(msg)
			cancel() // and returns nil all the same
			return nil, err
		})
		msg := newMessage("event")
		msg.SetContext(ctx)
		err := deliver(t, h, msg)
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, once.ShouldPoison(err))
		w.requireNothing()
		w.idle()

		msg = newMessage("event")
		msg.SetContext(ctx) // ended before it came
		require.ErrorIs(t, deliver(t, h, msg), context.Canceled)
		w.requireNothing()
	})
}

func TestSwallowedSQLErrorIsFound(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			_, err := apply(msg)
			require.NoError(t, err)
			_ = exec(msg.Context(), `insert into effects (event_id) values (null)`)
			return nil, nil
		})
		err := deliver(t, h, newMessage("event"))
		require.ErrorIs(t, err, once.ErrTxAborted)
		require.False(t, once.IsPermanent(err))
		w.requireNothing()
		w.idle()
	})
}

func TestConflictsAreRunAgain(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		for _, state := range []string{"40001", "40P01"} {
			for failures, want := range map[int]bool{2: true, 3: false} {
				var seen recorder
				calls := 0
				id := fmt.Sprintf("%s-%d", state, failures)
				h := w.consume(once.Config{OnOutcome: seen.record}, func(msg *message.Message) ([]*message.Message, error) {
					if calls++; calls <= failures {
						_, err := apply(msg)
						require.NoError(t, err)
						return nil, exec(msg.Context(), `do $$ begin raise exception 'conflict' using errcode = '`+state+`'; end $$`)
					}
					return apply(msg)
				})
				err := deliver(t, h, newMessage(id))
				require.Equal(t, 3, seen.outcomes[0].Attempts)
				if want {
					require.NoError(t, err)
					require.Equal(t, 1, w.count(`select count(*) from effects where event_id = $1`, id))
				} else {
					require.Error(t, err)
					require.False(t, once.ShouldPoison(err))
					require.Zero(t, w.count(`select count(*) from effects where event_id = $1`, id))
				}
			}
		}
		w.idle()
	})
}

func TestRealDeadlock(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		_, err := w.pool.Exec(t.Context(), `insert into effects (event_id) values ('row-1'), ('row-2')`)
		require.NoError(t, err)
		var together sync.WaitGroup
		together.Add(2)
		var first sync.Map
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			rows := strings.Split(string(msg.Payload), " ")
			touch := func(row string) error {
				return exec(msg.Context(), `update effects set note = note || $1 where event_id = $2`, once.EventID(msg.Context()), row)
			}
			if err := touch(rows[0]); err != nil {
				return nil, err
			}
			if _, again := first.LoadOrStore(msg.UUID, true); !again {
				together.Done()
				together.Wait()
			}
			return nil, touch(rows[1])
		})
		var wg sync.WaitGroup
		for id, rows := range map[string]string{"a": "row-1 row-2", "b": "row-2 row-1"} {
			wg.Go(func() {
				if err := deliver(t, h, message.NewMessage(id, []byte(rows))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 2, w.count(`select count(*) from effects where length(note) = 2 and note like '%a%' and note like '%b%'`))
	})
}

func TestProducedMessagesNeedAnOutbox(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		produce := func(msg *message.Message) ([]*message.Message, error) {
			_, err := apply(msg)
			return []*message.Message{newMessage("mail")}, err
		}
		err := w.route(once.Config{}, produce)(newMessage("event"))
		require.ErrorIs(t, err, once.ErrNoOutbox)
		require.True(t, once.IsPermanent(err))
		require.False(t, once.ShouldPoison(err))
		w.requireNothing()

		// Outside a Router there is no topic, and no handler's name either.
		err = deliver(t, w.consume(once.Config{Outbox: newPublisher(t)}, produce), newMessage("event"))
		require.ErrorIs(t, err, once.ErrNoTopic)
		require.False(t, once.ShouldPoison(err))
		mw, err := once.Transactional(w.db, once.Config{})
		require.NoError(t, err)
		err = deliver(t, mw(apply), newMessage("event"))
		require.ErrorIs(t, err, once.ErrNoConsumer)
		require.False(t, once.ShouldPoison(err))
		w.requireNothing()
	})
}

// The handler may return the message it was given.
func TestMessagePassedThrough(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		send := w.route(once.Config{Outbox: newPublisher(t)}, func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{msg}, nil
		})
		require.NoError(t, send(newMessage("event")))
		require.Equal(t, 1, w.count(`select count(*) from watermill_outbox where uuid = 'event'`))
	})
}

// On the Router and on the handler too, by mistake: the inner claim would wait for the outer one until the lock timeout, and the
// event be handled never.
func TestTransactionalTwice(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		err := deliver(t, w.consume(once.Config{}, w.consume(once.Config{}, apply)), newMessage("event"))
		require.ErrorContains(t, err, "twice")
		require.True(t, once.IsPermanent(err))
		require.False(t, once.ShouldPoison(err))
		w.requireNothing()

		// Another consumer is no mistake.
		inner := w.consume(once.Config{Consumer: "inner"}, apply)
		require.NoError(t, deliver(t, w.consume(once.Config{}, inner), newMessage("event")))
		require.Equal(t, 1, w.effects())
		require.Equal(t, 2, w.claims())
	})
}

// Another session's DDL makes prepared statements useless, once on each connection: no message is to blame.
func TestHandlerSurvivesDDL(t *testing.T) {
	for _, driver := range []string{"pgx", "sql-pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, driver)
			var seen recorder
			h := w.consume(once.Config{OnOutcome: seen.record}, func(msg *message.Message) ([]*message.Message, error) {
				ctx := msg.Context()
				if tx, ok := once.PgxTx(ctx); ok {
					rows, err := tx.Query(ctx, `select * from effects where event_id = $1`, "x")
					if err != nil {
						return nil, err
					}
					rows.Close()
					return nil, rows.Err()
				}
				tx, _ := once.SQLTx(ctx)
				rows, err := tx.QueryContext(ctx, `select * from effects where event_id = $1`, "x")
				if err != nil {
					return nil, err
				}
				return nil, errors.Join(rows.Close(), rows.Err())
			})
			require.NoError(t, deliver(t, h, newMessage("warm-up")))
			_, err := w.pool.Exec(t.Context(), `alter table effects add column more text`)
			require.NoError(t, err)
			require.NoError(t, deliver(t, h, newMessage("event")))
			require.Equal(t, 2, seen.outcomes[1].Attempts)
		})
	}
}

func TestConfigFaultsComeAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := once.Transactional(once.Pgx(nil), once.Config{
		Consumer:    strings.Repeat("x", 513),
		Dedupe:      dedupe.Config{Table: "a.b.c"},
		MaxAttempts: -1,
		LockTimeout: time.Hour,
	})
	require.Error(t, err)
	_, tooLong := once.Transactional(nil, once.Config{LockTimeout: 30 * 24 * time.Hour, CommitTimeout: 31 * 24 * time.Hour})
	require.ErrorContains(t, tooLong, "LockTimeout")
	for _, field := range []string{"pool is nil", "Consumer", "Dedupe", "Table", "MaxAttempts", "CommitTimeout"} {
		require.ErrorContains(t, err, field)
	}
	_, err = once.Transactional(nil, once.Config{})
	require.ErrorContains(t, err, "db is nil")
	_, err = once.Transactional(once.SQL(nil), once.Config{})
	require.ErrorContains(t, err, "db is nil")
}
