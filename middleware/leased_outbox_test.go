package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
)

func TestLeasedProduces(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	publisher := newPublisher(t)
	var leaked context.Context
	handle := func(fault error) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			leaked = msg.Context()
			before := w.outbox()
			require.NoError(t, publisher.PublishContext(msg.Context(), "receipts", newMessage("receipt")))
			require.Equal(t, before, w.outbox(), "it travels with the completion")
			return []*message.Message{newMessage("mail")}, fault
		}
	}
	config := once.LeasedConfig{Consumer: "cards", Outbox: publisher}
	routed := func(h message.HandlerFunc) func(*message.Message) error {
		mw, err := once.Leased(w.pool, config)
		require.NoError(t, err)
		return w.routeThrough(mw, publisher, h)
	}
	require.ErrorContains(t, routed(handle(errors.New("no luck")))(newMessage("event")), "no luck")
	require.Zero(t, w.outbox())
	deliverOK := routed(handle(nil))
	msg := newMessage("event")
	msg.Metadata.Set("correlation_id", "c1")
	require.NoError(t, deliverOK(msg))
	require.Equal(t, 2, w.count(`select count(*) from watermill_outbox where metadata->>'correlation_id' = 'c1'
		and (topic, uuid) in (('mails', 'mail'), ('receipts', 'receipt'))`))
	require.ErrorIs(t, publisher.PublishContext(leaked, "receipts", newMessage("late")), outbox.ErrNoTransaction)
	require.NoError(t, deliverOK(newMessage("event")))
	require.Equal(t, 2, w.outbox())

	// Returned, and nowhere to go to.
	h := w.lease(once.LeasedConfig{}, handle(nil))
	require.ErrorIs(t, deliver(t, h, newMessage("none")), once.ErrNoOutbox)
	h = w.lease(once.LeasedConfig{Outbox: publisher}, handle(nil))
	require.ErrorIs(t, deliver(t, h, newMessage("none")), once.ErrNoTopic)
	require.Equal(t, 2, w.outbox())
}

// A call for whose messages there is no place must not be made, again and again.
func TestLeasedMakesNoCallWithoutItsOutbox(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ spoil, mend, want string }{
		"missing": {`alter table watermill_outbox rename to away`, `alter table away rename to watermill_outbox`, "watermill_outbox"},
		"no right on the table": {`revoke insert on watermill_outbox from clerk`, `grant insert on watermill_outbox to clerk`,
			"permission denied for table"},
		"no right on the sequence": {`revoke usage on watermill_outbox_offset_seq from clerk`, `grant usage on watermill_outbox_offset_seq to clerk`,
			"permission denied for sequence"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "pgx")
			pool, exec := w.clerk(`grant select, insert, update, delete on all tables in schema public to clerk;
				grant usage on all sequences in schema public to clerk`)
			calls := 0
			publisher := newPublisher(t)
			mw, err := once.Leased(pool, once.LeasedConfig{Consumer: "cards", Outbox: publisher})
			require.NoError(t, err)
			h := mw(func(msg *message.Message) ([]*message.Message, error) {
				calls++
				return nil, publisher.PublishContext(msg.Context(), "receipts", newMessage(watermill.NewUUID()))
			})
			exec(test.spoil)
			for range 2 {
				err := deliver(t, h, newMessage("first"))
				require.ErrorContains(t, err, test.want)
				require.False(t, once.ShouldPoison(err))
				require.Zero(t, calls)
			}
			exec(test.mend)
			for range 2 {
				require.NoError(t, deliver(t, h, newMessage("first")))
			}
			require.Equal(t, 1, calls)

			// It was there, and is so no more: this is found out once.
			exec(test.spoil)
			for range 3 {
				err := deliver(t, h, newMessage("second"))
				require.ErrorContains(t, err, test.want)
				require.False(t, once.ShouldPoison(err))
			}
			require.Equal(t, 2, calls)
			require.NoError(t, deliver(t, h, newMessage("first")), "a duplicate needs no outbox")
			exec(test.mend)
			require.NoError(t, deliver(t, h, newMessage("second")))
			require.Equal(t, 3, calls)
			require.Equal(t, 2, w.outbox())
		})
	}
}

// What refuses some messages refuses no call before it has made its messages; what refuses all does.
func TestLeasedWhereItsOutboxIsParticular(t *testing.T) {
	t.Parallel()
	const trigger = `create function judge() returns trigger language plpgsql as $$ begin %s; return new; end $$;
		create trigger judge before insert on watermill_outbox for each row execute function judge()`
	for name, test := range map[string]struct {
		ddl     string
		calls   int
		poisons bool
	}{
		"a trigger that knows topics":      {fmt.Sprintf(trigger, `if new.topic <> 'receipts' then raise 'no such topic'; end if`), 1, false},
		"a constraint that knows topics":   {`alter table watermill_outbox add check (topic = 'receipts')`, 1, false},
		"a trigger with a code of its own": {fmt.Sprintf(trigger, `if new.topic <> 'receipts' then raise 'no such topic' using errcode = '55000'; end if`), 1, false},
		"a trigger that knows rights": {
			fmt.Sprintf(trigger, `if new.topic <> 'receipts' then raise 'no such topic' using errcode = 'insufficient_privilege'; end if`), 1, false,
		},
		"a trigger that refuses this one": {fmt.Sprintf(trigger, `if new.topic = 'receipts' then raise 'not this'; end if`), 1, true},
		"a trigger that divides by zero":  {fmt.Sprintf(trigger, `if new.topic = 'receipts' then perform 1 / 0; end if`), 1, true},
		"a column that wants a value":     {`alter table watermill_outbox add tenant text not null`, 0, false},
		"a sequence behind the table":     {`insert into watermill_outbox ("offset", uuid, topic, key) select i, i, 't', i from generate_series(1, 9) as i`, 0, false},
		"a sequence at its end":           {`alter sequence watermill_outbox_offset_seq maxvalue 2; select setval('watermill_outbox_offset_seq', 2)`, 0, false},
		"a partitioned table without a place": {`drop table watermill_outbox; create table watermill_outbox (transaction_id xid8, "offset" bigserial,
			uuid text, topic text, key text, payload bytea, metadata json) partition by list (topic)`, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "pgx")
			_, err := w.pool.Exec(t.Context(), test.ddl)
			require.NoError(t, err)
			publisher, calls := newPublisher(t), 0
			h := w.lease(once.LeasedConfig{Outbox: publisher, Effects: dedupe.EffectsConfig{OnUnknown: dedupe.Refuse}}, func(msg *message.Message) ([]*message.Message, error) {
				calls++
				return nil, publisher.PublishContext(msg.Context(), "receipts", newMessage("receipt"))
			})
			err = deliver(t, h, newMessage("event"))
			require.Equal(t, test.calls, calls)
			require.Equal(t, test.poisons, once.ShouldPoison(err), "%v", err)
			require.NotErrorIs(t, err, dedupe.ErrLeaseLost)
			switch {
			case test.poisons:
				require.ErrorIs(t, err, dedupe.ErrOutcomeLost)
				require.Equal(t, "unknown", w.effectState("event"))
			case test.calls == 0:
				require.Error(t, err)
				require.Equal(t, "free", w.effectState("event"))
			default:
				require.NoError(t, err)
				require.Equal(t, 1, w.outbox())
			}
		})
	}
}

// A policy may let some topics in only.
func TestLeasedBehindRowSecurity(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	pool, _ := w.clerk(`alter table watermill_outbox enable row level security;
		create policy receipts on watermill_outbox for insert with check (topic = 'receipts');
		grant select, insert, update, delete on all tables in schema public to clerk; grant usage on all sequences in schema public to clerk`)
	publisher := newPublisher(t)
	mw, err := once.Leased(pool, once.LeasedConfig{Consumer: "test", Outbox: publisher})
	require.NoError(t, err)
	require.NoError(t, deliver(t, mw(func(msg *message.Message) ([]*message.Message, error) {
		return nil, publisher.PublishContext(msg.Context(), "receipts", newMessage("receipt"))
	}), newMessage("event")))
	require.Equal(t, 1, w.outbox())
}

// clerk is a pool of a role of the test's own, with exec for statements of the owner's in which it is called clerk.
func (w *world) clerk(setup string) (pool *pgxpool.Pool, exec func(statements string)) {
	w.t.Helper()
	role := "clerk_" + strings.ReplaceAll(watermill.NewUUID(), "-", "")
	exec = func(statements string) {
		_, err := w.pool.Exec(context.Background(), strings.ReplaceAll(statements, "clerk", role))
		require.NoError(w.t, err)
	}
	exec(`create role clerk; ` + setup)
	w.t.Cleanup(func() { exec(`drop owned by clerk; drop role clerk`) })
	config, err := pgxpool.ParseConfig(w.url)
	require.NoError(w.t, err)
	config.ConnConfig.RuntimeParams["role"] = role
	pool, err = pgxpool.NewWithConfig(w.t.Context(), config)
	require.NoError(w.t, err)
	w.t.Cleanup(pool.Close)
	return pool, exec
}

// Somebody holds the outbox locked: a delivery waits for a while, and does not keep the pool from others.
func TestLeasedWhileItsOutboxIsLocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	tx, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `lock table watermill_outbox`)
	require.NoError(t, err)
	pool := pgtest.PoolOn(t, w.url+"&pool_max_conns=2")
	mw, err := once.Leased(pool, once.LeasedConfig{Consumer: "cards", Outbox: newPublisher(t)})
	require.NoError(t, err)
	h := mw(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			err := deliver(t, h, newMessage(fmt.Sprint(i)))
			assert.ErrorContains(t, err, "outbox")
			assert.False(t, once.ShouldPoison(err))
		})
	}
	effects, err := dedupe.NewEffects(pool, dedupe.EffectsConfig{})
	require.NoError(t, err)
	_, err = dedupe.Do(t.Context(), effects, "k", nil, func(context.Context, string) (int, error) { return 1, nil })
	require.NoError(t, err)
	wg.Wait()
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, deliver(t, h, newMessage("0")))
}
