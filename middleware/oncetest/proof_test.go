package oncetest_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/middleware/oncetest"
	"github.com/watermill-once/watermill-once/ordering"
)

// Handlers over database/sql, with drivers of the simple and of the extended protocol, the right way and without a claim.
func TestOtherDrivers(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "postgres"} {
		for _, once := range []bool{true, false} {
			setup := func(t testing.TB, db oncetest.Database) message.HandlerFunc {
				_, err := db.Pool.Exec(t.Context(), tables)
				require.NoError(t, err)
				other, err := sql.Open(driver, db.URL)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, other.Close()) })
				return func(msg *message.Message) ([]*message.Message, error) { return nil, byDriver(other, msg, once) }
			}
			runs := 120
			if once {
				runs = 12 // a sample does
			}
			f := try(t, func(t testing.TB) { oncetest.Config{Runs: runs}.Crash(t, setup, history()[:1]) })
			if once {
				require.Empty(t, f.failed, driver)
				continue
			}
			require.Len(t, f.failed, 1, driver)
			require.Contains(t, f.failed[0], "column balance: undisturbed 990, here 980")
		}
	}
}

func byDriver(db *sql.DB, msg *message.Message, once bool) error {
	tx, err := db.BeginTx(msg.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if once {
		result, err := tx.ExecContext(msg.Context(), `insert into processed (key) values ($1) on conflict do nothing`, msg.UUID)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return err
		}
	}
	if _, err := tx.ExecContext(msg.Context(), `update cards set balance = balance - 10 where card = 'card-1'`); err != nil {
		return err
	}
	return tx.Commit()
}

func TestAmnesia(t *testing.T) {
	t.Parallel()
	sums := right(once.Config{}, func(ctx context.Context, c change) ([]*message.Message, error) { return nil, pay(ctx, c) })
	f := try(t, func(t testing.TB) { require.False(t, oncetest.Amnesia(t, sums, history())) })
	require.Empty(t, f.failed)
	require.Len(t, f.logged, 1)
	require.Equal(t, []string{`event 4 (UUID "evt-4")`, "the claims are emptied", `event 4 (UUID "evt-4") again`}, sequence(f.logged[0]))
	require.Contains(t, f.logged[0], "column balance: before 920, after 840")
	require.Contains(t, f.logged[0], "payments: a row appeared: id=2 card=card-1 amount=80")

	report := caught(t, func(t testing.TB) {
		require.False(t, oncetest.Config{MustSurviveAmnesia: true}.Amnesia(t, sums, history()))
	})
	require.Contains(t, report, "the handler leans on its claims")

	// A claims table of the user's own; and messages that leave again under their own UUIDs.
	state := right(once.Config{Ordering: ordering.Config{Position: position}, Dedupe: dedupe.Config{Table: "claims"}},
		func(ctx context.Context, c change) ([]*message.Message, error) {
			tx, _ := once.PgxTx(ctx)
			uuid, _ := once.DeriveUUID(ctx, "mail")
			_, err := tx.Exec(ctx, `update cards set status = $2 where card = $1`, c.Card, c.Status)
			return []*message.Message{message.NewMessage(uuid, nil)}, err
		})
	require.True(t, oncetest.Config{Claims: []string{"claims"}}.Amnesia(t, state, history()))

	report = caught(t, func(t testing.TB) { oncetest.Config{Claims: []string{"clams"}}.Amnesia(t, state, history()) })
	require.Contains(t, report, "Claims: empty clams: ")
}

// With a Schema, a process that has died leaves nothing in memory: a mark that is made when all is done does not help.
func TestSchemaMakesProcessesThatForget(t *testing.T) {
	t.Parallel()
	config := oncetest.Config{Schema: func(ctx context.Context, url string) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, tables)
		return errors.Join(err, conn.Close(ctx))
	}}
	setup := func(t testing.TB, db oncetest.Database) message.HandlerFunc {
		pool, err := pgxpool.New(t.Context(), db.URL)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		seen := map[string]bool{}
		return func(msg *message.Message) ([]*message.Message, error) {
			if seen[msg.UUID] {
				return nil, nil
			}
			_, err := pool.Exec(msg.Context(), `update cards set balance = balance - 1 where card = 'card-1'`)
			seen[msg.UUID] = err == nil
			return nil, err
		}
	}
	config.Replay(t, setup, history())
	report := caught(t, func(t testing.TB) { config.Crash(t, setup, history()[:1]) })
	require.Len(t, sequence(report), 2)

	setups := 0
	failing := func(t testing.TB, db oncetest.Database) message.HandlerFunc {
		if setups++; setups == 5 { // after a crash
			t.Fatalf("the second process does not start")
		}
		return setup(t, db)
	}
	require.Contains(t, caught(t, func(t testing.TB) { config.Crash(t, failing, history()[:1]) }), "the second process does not start")

	config.Schema = func(context.Context, string) error { return errors.New("oh") }
	require.Contains(t, caught(t, func(t testing.TB) { config.Replay(t, setup, history()) }), "oncetest: Schema: oh")
}

// What is drawn or comes from the clock, what refers to it, and what is computed from it, do not count between runs; all else does.
func TestColumnsThatAreOtherInEveryRun(t *testing.T) {
	t.Parallel()
	const tables = `
		create function a_number() returns int language sql volatile as 'select (random() * 1e9)::int';
		create table orders (
		  id bigserial primary key,
		  id2 bigint generated by default as identity,
		  uuid uuid default gen_random_uuid(),
		  number int default a_number(),
		  twice bigint generated always as (id * 2) stored,
		  at timestamptz default clock_timestamp(),
		  at2 timestamptz default current_timestamp,
		  day text default 'at ' || current_timestamp,
		  day2 timestamptz default localtimestamp,
		  event text
		);
		create table items (
		  position int default 1 + length('now is no call'),
		  order_id bigint references orders,
		  item text,
		  touched timestamptz
		);`
	setup := func(insert string) oncetest.Setup {
		return func(t testing.TB, db oncetest.Database) message.HandlerFunc {
			_, err := db.Pool.Exec(t.Context(), tables)
			require.NoError(t, err)
			return func(msg *message.Message) ([]*message.Message, error) {
				_, err := db.Pool.Exec(msg.Context(), insert, msg.UUID)
				return nil, err
			}
		}
	}
	right := setup(`
		with made as (insert into orders (event) values ($1) returning id, event)
		insert into items (order_id, item, touched) select id, event, clock_timestamp() from made`)
	config := oncetest.Config{IgnoreColumns: []string{"items.touched"}, Position: position}
	config.OutOfOrder(t, right, history()[:3])

	report := caught(t, func(t testing.TB) { oncetest.OutOfOrder(t, right, history()[:2]) })
	require.Contains(t, report, "two undisturbed runs end in different states: name what is drawn")
	require.Len(t, sequence(report), 1)
	require.Contains(t, report, "items: a row is missing: position=15 item=evt-")

	report = caught(t, func(t testing.TB) { // the position has a default that is always the same, and counts
		config.OutOfOrder(t, setup(`insert into items (position, item) select count(*), $1 from items`), history()[:2])
	})
	require.Contains(t, report, "items: a row too many: position=")
}

func TestIgnoreTables(t *testing.T) {
	t.Parallel()
	setup := by(func(ctx context.Context, db oncetest.Database, c change, msg *message.Message) error {
		if _, err := db.Pool.Exec(ctx, `insert into payments (card, amount) values ($1, 0)`, c.Card); err != nil { // a log of deliveries
			return err
		}
		return claimed(eventID, withdraw)(ctx, db, c, msg)
	})
	oncetest.Config{IgnoreTables: []string{"public.payments"}}.Replay(t, setup, history())
	require.Contains(t, caught(t, func(t testing.TB) { oncetest.Replay(t, setup, history()) }), "payments: a row appeared")
}

// An event that waits for another one is refused, and comes again.
func TestOutOfOrderDeliversAgainWhatWasRefused(t *testing.T) {
	t.Parallel()
	setup := by(func(ctx context.Context, db oncetest.Database, c change, _ *message.Message) error {
		tag, err := db.Pool.Exec(ctx, `update cards set status = $2, version = $3 where card = $1 and version = $3 - 1`, c.Card, c.Status, c.Version)
		if err == nil && tag.RowsAffected() == 0 {
			err = errors.New("not yet")
		}
		return err
	})
	oncetest.Config{Position: position}.OutOfOrder(t, setup, history())
}

// A relay parks a message that it cannot send; here, one whose row was written by hand.
func TestCrashFindsWhatNoRelaySends(t *testing.T) {
	t.Parallel()
	handle := func(ctx context.Context, c change) ([]*message.Message, error) {
		return nil, once.Queue(ctx, `insert into watermill_outbox (uuid, topic, key, parked_at, next_attempt_at) values ($1, 'mails', 'k', now(), 'infinity')`, c.ID)
	}
	report := caught(t, func(t testing.TB) { oncetest.Crash(t, right(once.Config{}, handle), history()[:1]) })
	require.Contains(t, report, `a relay could not send what is in the outbox "outbox"`)
	require.Contains(t, report, "UUID 'evt-1' for topic 'mails'")
}

func TestMisuse(t *testing.T) {
	t.Parallel()
	good := by(claimed(eventID, withdraw))
	same := append(history(), history()[0])
	for text, proof := range map[string]func(t testing.TB){
		"there are no events":                 func(t testing.TB) { oncetest.Replay(t, good, nil) },
		"an event is nil":                     func(t testing.TB) { oncetest.Replay(t, good, []*message.Message{nil}) },
		"Setup is nil":                        func(t testing.TB) { oncetest.Replay(t, nil, history()) },
		"Copies is 1: at least two":           func(t testing.TB) { oncetest.Config{Copies: 1}.Concurrent(t, good, history()) },
		"Runs is negative: -1":                func(t testing.TB) { oncetest.Config{Runs: -1}.Crash(t, good, history()) },
		"Timeout is negative":                 func(t testing.TB) { oncetest.Config{Timeout: -1}.Crash(t, good, history()) },
		"holds an empty name":                 func(t testing.TB) { oncetest.Config{Claims: []string{""}}.Amnesia(t, good, history()) },
		"IgnoreTables: there is no table crd": func(t testing.TB) { oncetest.Config{IgnoreTables: []string{"crd"}}.Replay(t, good, history()) },
		"IgnoreColumns: there is no column x": func(t testing.TB) { oncetest.Config{IgnoreColumns: []string{"x"}}.Replay(t, good, history()) },
		"there is no column cards.x":          func(t testing.TB) { oncetest.Config{IgnoreColumns: []string{"cards.x"}}.Replay(t, good, history()) },
		"Redeliver gave no message": func(t testing.TB) {
			oncetest.Config{Redeliver: func(*message.Message) *message.Message { return nil }}.Replay(t, good, history())
		},
		"Setup gave no handler": func(t testing.TB) {
			oncetest.Replay(t, func(testing.TB, oncetest.Database) message.HandlerFunc { return nil }, history())
		},
		"have the same position": func(t testing.TB) { oncetest.Config{Position: position}.OutOfOrder(t, good, same) },
		`event 1 (UUID "evt-1"): ordering: invalid position`: func(t testing.TB) {
			oncetest.Config{Position: ordering.JSONFields("card", "status")}.OutOfOrder(t, good, history())
		},
	} {
		require.Contains(t, caught(t, proof), text)
	}
}

// What Setup registers is cleaned up after each run, also where Setup ends the test.
func TestSetupCleansUpAfterEachRun(t *testing.T) {
	t.Parallel()
	open, most, setups := 0, 0, 0
	setup := func(t testing.TB, db oncetest.Database) message.HandlerFunc {
		open, setups = open+1, setups+1
		most = max(most, open)
		t.Cleanup(func() {
			<-t.Context().Done()
			open--
		})
		if setups == 3 {
			t.FailNow()
		}
		return by(claimed(eventID, withdraw))(t, db)
	}
	try(t, func(t testing.TB) { oncetest.OutOfOrder(t, setup, history()) })
	require.Equal(t, 3, setups)
	require.Equal(t, 1, most)
	require.Zero(t, open)
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	db := oncetest.Postgres(t)
	setup := right(once.Config{Consumer: "by hand"}, func(ctx context.Context, c change) ([]*message.Message, error) { return nil, pay(ctx, c) })
	handle := setup(t, db)
	for range 2 {
		_, err := handle(history()[0])
		require.NoError(t, err)
	}
	conn, err := pgx.Connect(t.Context(), db.URL)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	var balance int
	require.NoError(t, conn.QueryRow(t.Context(), `select balance from cards where card = 'card-1'`).Scan(&balance))
	require.Equal(t, 990, balance)
	require.NoError(t, db.Broker.Publish("topic", message.NewMessage("1", nil)))
}
