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
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	once "github.com/watermill-once/watermill-once/middleware"
)

// Behind PgBouncer in transaction mode each transaction may be on another server connection, with none of the last one's
// prepared statements.
func TestThroughPgBouncer(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol,
	} {
		for _, driver := range []string{"pgx", "sql-pgx"} {
			t.Run(fmt.Sprintf("%v/%s", mode, driver), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, driver)
				url := pgtest.Bouncer(t, w.url)
				if driver == "pgx" {
					config, err := pgxpool.ParseConfig(url)
					require.NoError(t, err)
					config.ConnConfig.DefaultQueryExecMode = mode
					pool, err := pgxpool.NewWithConfig(context.Background(), config)
					require.NoError(t, err)
					defer pool.Close()
					w.db = once.Pgx(pool)
				} else {
					config, err := pgx.ParseConfig(url)
					require.NoError(t, err)
					config.DefaultQueryExecMode = mode
					db := stdlib.OpenDB(*config)
					defer db.Close()
					w.db = once.SQL(db)
				}
				w.everyOutcome()
			})
		}
	}
	t.Run("pq", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, "sql-pq")
		db, err := sql.Open("postgres", pgtest.Bouncer(t, w.url)+"&binary_parameters=yes")
		require.NoError(t, err)
		defer db.Close()
		w.db = once.SQL(db)
		w.everyOutcome()
	})
}

// The exec modes also without PgBouncer, with the default one.
func TestExecModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement,
		pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "pgx")
			config, err := pgxpool.ParseConfig(w.url)
			require.NoError(t, err)
			config.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(context.Background(), config)
			require.NoError(t, err)
			defer pool.Close()
			w.db = once.Pgx(pool)
			w.everyOutcome()
		})
	}
}

// everyOutcome drives 60 events of three entities, each three times, some at once, through fresh, duplicate, stale and failed.
func (w *world) everyOutcome() {
	t := w.t
	t.Helper()
	require.NoError(t, once.InitializeSchema(t.Context(), w.db))
	var mu sync.Mutex
	kinds := map[once.Kind]int{}
	failed := map[string]bool{}
	publisher := newPublisher(t)
	now := func(*message.Message) (time.Time, error) { return time.Now(), nil }
	h := w.consume(once.Config{Ordering: byMetadata, Outbox: publisher, MaxAge: time.Hour, Time: now, OnOutcome: func(_ context.Context, o once.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		kinds[o.Kind]++
		if o.Kind == once.Failed && o.Err.Error() != "not yet" {
			t.Error(o.Err)
		}
	}}, func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		if _, err := apply(msg); err != nil {
			return nil, err
		}
		if err := once.Queue(ctx, `insert into effects (event_id, note) values ($1, 'queued')`, once.EventID(ctx)); err != nil {
			return nil, err
		}
		for _, n := range []string{"a", "b"} { // two rows: the statement for several
			mail := message.NewMessage(msg.UUID+n, []byte{0, 1, 0xff, '\\'})
			mail.SetContext(ctx)
			mail.Metadata.Set("quote", `"it's" {a,b}`)
			if err := publisher.Publish("mails", mail); err != nil {
				return nil, err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if !failed[msg.UUID] {
			failed[msg.UUID] = true
			return nil, fmt.Errorf("not yet")
		}
		return nil, nil
	})

	const events = 60
	for range 3 {
		var wg sync.WaitGroup
		for worker := range 3 { // one for each entity, in the order of versions
			wg.Go(func() {
				for i := worker; i < events; i += 3 {
					_ = deliver(t, h, versioned(fmt.Sprintf("event-%d", i), fmt.Sprintf("card-%d", worker), fmt.Sprint(i)))
				}
			})
		}
		wg.Wait()
	}
	require.Equal(t, map[once.Kind]int{once.Failed: events, once.Fresh: events, once.Duplicate: events}, kinds)
	require.NoError(t, deliver(t, h, versioned("late", "card-0", "-5")))
	require.Equal(t, 1, kinds[once.Stale])

	require.Equal(t, 2*events, w.effects())
	require.Equal(t, events, w.count(`select count(distinct event_id) from effects where note = 'queued'`))
	require.Equal(t, events+1, w.claims())
	require.Equal(t, 2*events, w.count(`select count(*) from watermill_outbox
		where payload = '\x0001ff5c'::bytea and metadata->>'quote' = '"it''s" {a,b}'`))
	w.idle()
}
