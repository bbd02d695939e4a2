package middleware_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

func TestSweepOfEachTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	_, err := w.pool.Exec(t.Context(), `
		insert into watermill_effects (consumer, key, state, token, attempts, started_at, updated_at, lease_until)
		select '', state || ', ' || age, state, 0, 1, now() - interval '40 days', updated_at, case when state = 'started' then updated_at end
		from unnest(array['started', 'unknown', 'free', 'done', 'failed']) as state,
			(values ('old', now() - interval '31 days'), ('young', now() - interval '29 days')) as ages (age, updated_at);
		insert into watermill_processed_events (consumer, event_id, processed_at) values
			('a', 'old', now() - interval '31 days'), ('b', 'old', now() - interval '31 days'), ('a', 'young', now() - interval '29 days');
		insert into watermill_entity_versions (consumer, entity, version, event_id, updated_at) values
			('a', 'old', 1, 'e', now() - interval '31 days'), ('a', 'young', 1, 'e', now() - interval '29 days');
		insert into watermill_outbox (uuid, topic, key, created_at, sent_at, parked_at, next_attempt_at) values
			('sent, old', 't', 'k', now() - interval '31 days', now() - interval '31 days', null, null),
			('sent, young', 't', 'k', now() - interval '31 days', now() - interval '29 days', null, null),
			('waiting, old', 't', 'k', now() - interval '31 days', null, null, null),
			('parked, old', 't', 'k', now() - interval '31 days', null, now() - interval '31 days', 'infinity')`)
	require.NoError(t, err)
	left := func() []string {
		return w.texts(`
			select 'claim ' || consumer || ' ' || event_id as left from watermill_processed_events
			union all select 'version ' || entity from watermill_entity_versions
			union all select 'effect ' || key from watermill_effects
			union all select 'message ' || uuid from watermill_outbox
			order by 1`)
	}
	all := left()
	for name, c := range map[string]struct {
		config once.SweeperConfig
		gone   []string
	}{
		"nothing":  {once.SweeperConfig{BrokerRetention: day, Claims: []dedupe.Config{{}}, Versions: []ordering.Config{{}}, Outboxes: []*outbox.Publisher{newPublisher(t)}}, nil},
		"claims":   {once.SweeperConfig{ClaimsAge: 30 * day, BrokerRetention: day}, []string{"claim a old", "claim b old"}},
		"versions": {once.SweeperConfig{VersionsAge: 30 * day, BrokerRetention: day}, []string{"version old"}},
		"effects":  {once.SweeperConfig{EffectsAge: 30 * day, BrokerRetention: day}, []string{"effect done, old", "effect failed, old"}},
		"sent":     {once.SweeperConfig{SentAge: 30 * day}, []string{"message sent, old"}},
	} {
		var told []once.Swept
		c.config.OnSweep = func(_ context.Context, s once.Swept) { told = append(told, s) }
		swept, err := newSweeper(t, w.pool, c.config).Sweep(t.Context())
		require.NoError(t, err, name)
		require.Equal(t, told, swept, name)
		var kept []string
		for _, row := range all {
			gone := false
			for _, g := range c.gone {
				gone = gone || g == row
			}
			if !gone {
				kept = append(kept, row)
			}
		}
		require.Equal(t, kept, left(), name)
		all = kept
		if c.gone == nil {
			require.Empty(t, swept, name)
			continue
		}
		require.Len(t, swept, 1, name)
		require.EqualValues(t, len(c.gone), swept[0].Rows, name)
		require.NoError(t, swept[0].Err)

		swept, err = newSweeper(t, w.pool, c.config).Sweep(t.Context())
		require.NoError(t, err, name)
		require.Zero(t, swept[0].Rows, name)
	}
}

// All tables of a service in one sweeper, each swept once a pass, under any names.
func TestSweepOfSeveralTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	_, err := w.pool.Exec(t.Context(), `create schema "my app"`)
	require.NoError(t, err)
	orders, cards := dedupe.Config{Table: "my app.Seen"}, dedupe.Config{Table: `"cards"`}
	versions, effects := ordering.Config{Table: "my app.versions"}, dedupe.EffectsConfig{Table: "my app.effects"}
	mails, err := outbox.NewPublisher(outbox.Config{Topic: "mails"})
	require.NoError(t, err)
	require.NoError(t, once.InitializeSchema(t.Context(), w.db, orders, cards, versions, effects, mails))
	_, err = w.pool.Exec(t.Context(), `
		insert into "my app".effects (consumer, key, state, token, attempts, started_at, updated_at)
		values ('', 'old', 'done', 0, 1, now() - interval '31 days', now() - interval '31 days');
		insert into "my app"."Seen" (consumer, event_id, processed_at) values ('a', 'old', now() - interval '31 days');
		insert into """cards""" (consumer, event_id, processed_at) values ('a', 'old', now() - interval '31 days');
		insert into "my app".versions (consumer, entity, version, updated_at) values ('a', 'old', 1, now() - interval '31 days');
		insert into watermill_mails (uuid, topic, key, sent_at) values ('old', 't', 'k', now() - interval '31 days')`)
	require.NoError(t, err)
	w.addClaims("not of these", 1, "31 days")

	swept, err := newSweeper(t, w.pool, once.SweeperConfig{
		ClaimsAge: 30 * day, VersionsAge: 30 * day, EffectsAge: 30 * day, SentAge: 30 * day, BrokerRetention: day,
		Claims:   []dedupe.Config{orders, cards, orders},
		Versions: []ordering.Config{versions},
		Effects:  []dedupe.EffectsConfig{effects},
		Outboxes: []*outbox.Publisher{newPublisher(t), mails},
	}).Sweep(t.Context())
	require.NoError(t, err)
	rows := map[string]int64{}
	for _, s := range swept {
		rows[s.Table] += s.Rows
	}
	require.Len(t, swept, 6)
	require.Equal(t, map[string]int64{
		`"my app"."Seen"`: 1, `"""cards"""`: 1, `"my app"."versions"`: 1, `"my app"."effects"`: 1, `"watermill_outbox"`: 0, `"watermill_mails"`: 1,
	}, rows)
	require.Equal(t, 1, w.claims())
}

// The age is the database's to tell, and what is exactly as old is kept.
func TestSweepToTheMicrosecond(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	_, err := w.pool.Exec(t.Context(), `
		create schema clock;
		create function clock.now() returns timestamptz stable language sql as $$ select '2001-03-31 12:00:00Z'::timestamptz $$;
		do $$ begin execute format('alter database %I set search_path to clock, pg_catalog, public', current_database()); end $$;
		insert into watermill_processed_events (consumer, event_id, processed_at) values
			('a', 'kept', '2001-03-01 12:00:00Z'), ('a', 'gone', '2001-03-01 11:59:59.999999Z')`)
	require.NoError(t, err)
	swept, err := newSweeper(t, pgtest.PoolOn(t, w.url), claimsOfAMonth).Sweep(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, swept[0].Rows)
	require.Equal(t, []string{"kept"}, w.texts(`select event_id from watermill_processed_events`))
}

// Each transaction deletes BatchSize rows at most, and a pass finds every old row, wherever it stands.
func TestSweepInBatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	_, err := w.pool.Exec(t.Context(), `
		create table batches (rows bigint, xid xid8 default pg_current_xact_id());
		create function note() returns trigger language plpgsql as $$
			begin insert into batches select count(*) from gone having count(*) > 0; return null; end $$;
		create trigger note after delete on watermill_processed_events referencing old table as gone for each statement execute function note()`)
	require.NoError(t, err)
	for i, n := range []int{1, 3000, 99, 20_000, 1, 500} { // 250 pages and more: several reads
		w.addClaims(fmt.Sprint("young", i, "-"), n, "29 days")
		w.addClaims(fmt.Sprint("old", i, "-"), n, "31 days")
	}
	config := claimsOfAMonth
	config.BatchSize = 700
	swept, err := newSweeper(t, w.pool, config).Sweep(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 23_601, swept[0].Rows)
	require.Equal(t, 23_601, w.claims())
	require.Zero(t, w.count(`select count(*) from watermill_processed_events where event_id like 'old%'`))
	require.Equal(t, 700, w.count(`select max(rows) from batches`))
	require.Equal(t, 23_601, w.count(`select sum(rows) from batches`))
	require.Zero(t, w.count(`select count(*) - count(distinct xid) from batches`))
}

// tracer hears which statements the sweeper walks by.
type tracer struct {
	mu      sync.Mutex
	queries map[string]bool
}

func (r *tracer) hear(sql string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if strings.Contains(sql, "ctid") {
		r.queries[sql] = true
	}
}

func (r *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	r.hear(data.SQL)
	return ctx
}
func (r *tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (r *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (r *tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
func (r *tracer) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	r.hear(data.SQL)
}

// Whatever the statistics say, a step reads its range of pages and no more, also by a plan that knows no arguments.
func TestSweepReadsARangeOfPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	w.addClaims("young", 30_000, "1 day")
	w.addClaims("old", 10, "31 days")
	config, err := pgxpool.ParseConfig(w.url)
	require.NoError(t, err)
	heard := &tracer{queries: map[string]bool{}}
	config.ConnConfig.Tracer = heard
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	_, err = newSweeper(t, pool, claimsOfAMonth).Sweep(t.Context())
	require.NoError(t, err)
	require.Len(t, heard.queries, 2, "one finds, one deletes")
	w.addClaims("old", 10_000, "31 days")
	for _, analyze := range []string{"", "analyze watermill_processed_events"} {
		_, err := w.pool.Exec(t.Context(), analyze)
		require.NoError(t, err)
		for query := range heard.queries {
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				conn, err := pgx.Connect(t.Context(), w.url)
				require.NoError(t, err)
				_, err = conn.PgConn().Exec(t.Context(), "set plan_cache_mode = "+mode+"; prepare step (text, text, bigint, bigint) as "+query).ReadAll()
				require.NoError(t, err)
				rows, err := conn.Query(t.Context(), "explain execute step ('(0,0)', '(64,0)', 2592000000000, 200)", pgx.QueryExecModeSimpleProtocol)
				require.NoError(t, err)
				lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
				require.NoError(t, err)
				plan := strings.Join(lines, "\n")
				require.Contains(t, plan, "Tid Range Scan on watermill_processed_events", mode)
				require.Equal(t, strings.HasPrefix(query, "delete"), strings.Contains(plan, "Tid Scan on watermill_processed_events"), mode)
				require.NotContains(t, plan, "Seq Scan", mode)
				require.NotContains(t, plan, "Bitmap", mode)
				require.NoError(t, conn.Close(t.Context()))
			}
		}
	}
}

// A row that somebody works on is left for the next pass, and nobody waits.
func TestSweepPassesBy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	w.addClaims("old", 100, "31 days")
	_, err := w.pool.Exec(t.Context(), `insert into watermill_entity_versions (consumer, entity, version, updated_at)
		select 'test', 'card' || n, 1, now() - interval '31 days' from generate_series(1, 100) as n`)
	require.NoError(t, err)
	config := once.SweeperConfig{ClaimsAge: 30 * day, VersionsAge: 30 * day, BrokerRetention: day, BatchSize: 1}

	forgetting, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	defer forgetting.Rollback(context.WithoutCancel(t.Context()))
	_, err = dedupe.Config{}.Forget(t.Context(), forgetting, "test", "old7")
	require.NoError(t, err)
	h := w.consume(once.Config{Ordering: byMetadata}, func(*message.Message) ([]*message.Message, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		swept, err := newSweeper(t, w.pool, config).Sweep(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 99, swept[0].Rows)
		require.EqualValues(t, 99, swept[1].Rows)
		return nil, nil
	})
	require.NoError(t, deliver(t, h, versioned("event", "card7", "2")))
	require.NoError(t, forgetting.Rollback(t.Context()))
	require.Equal(t, []string{"event", "old7"}, w.texts(`select event_id from watermill_processed_events order by 1`))
	require.Equal(t, []string{"card7 2"}, w.texts(`select entity || ' ' || version from watermill_entity_versions`))
}

// A redelivery of an event whose claim is being swept waits for nobody: it is a duplicate until the sweep commits, and fresh after.
func TestSweepAndARedelivery(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		h := w.consume(once.Config{}, apply)
		require.NoError(t, deliver(t, h, newMessage("event")))
		_, err := w.pool.Exec(t.Context(), `update watermill_processed_events set processed_at = now() - interval '31 days';
			create function slow() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(1); return old; end $$;
			create trigger slow before delete on watermill_processed_events for each row execute function slow()`)
		require.NoError(t, err)
		tx, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(context.WithoutCancel(t.Context()))
		_, err = tx.Exec(t.Context(), `select pg_advisory_xact_lock(1)`)
		require.NoError(t, err)
		results := make(chan error, 2)
		sweeper := newSweeper(t, w.pool, claimsOfAMonth)
		go func() { _, err := sweeper.Sweep(context.Background()); results <- err }()
		waiting := func(n int) {
			require.Eventually(t, func() bool {
				return w.count(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) == n
			}, 20*time.Second, time.Millisecond)
		}
		waiting(1)
		require.NoError(t, deliver(t, h, newMessage("event")), "the claim is there until the sweep commits")
		require.Equal(t, 1, w.effects())
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, <-results)
		require.NoError(t, deliver(t, h, newMessage("event")))
		require.Equal(t, 2, w.effects(), "handled once more: that is what BrokerRetention and MaxAge are for")
	})
}

// A role whose transactions are stricter by default would fail on rows that others have just changed.
func TestSweepIsReadCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	_, err := w.pool.Exec(t.Context(), `
		create table levels (level text default current_setting('transaction_isolation'));
		create function note() returns trigger language plpgsql as $$ begin insert into levels default values; return null; end $$;
		create trigger note after delete on watermill_processed_events for each statement execute function note()`)
	require.NoError(t, err)
	w.addClaims("old", 100, "31 days")
	pool := pgtest.PoolOn(t, w.url+"&default_transaction_isolation=serializable")
	_, err = newSweeper(t, pool, claimsOfAMonth).Sweep(t.Context())
	require.NoError(t, err)
	require.Zero(t, w.claims())
	require.Equal(t, []string{"read committed"}, w.texts(`select distinct level from levels`))
}

// A large table of random ages, with rows updated, deleted and moved meanwhile: what is left is what a plain delete leaves.
func TestSweepLikeAPlainDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	ctx := t.Context()
	_, err := w.pool.Exec(ctx, `insert into watermill_processed_events (consumer, event_id, processed_at)
		select 'test', 'e' || n, now() - random() * interval '60 days' from generate_series(1, 300000) as n`)
	require.NoError(t, err)
	_, err = w.pool.Exec(ctx, `update watermill_processed_events set digest = '\x00' where event_id like '%7';
		create table want as select event_id from watermill_processed_events where processed_at >= now() - interval '30 days' + interval '5 min'`)
	require.NoError(t, err)
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			// touched: young again
			_, _ = w.pool.Exec(ctx, `with t as (update watermill_processed_events set processed_at = now() where ctid = any(array(
				select ctid from watermill_processed_events tablesample system (1) where processed_at < now() - interval '30 days' limit 20)) returning event_id)
				insert into want select event_id from t`)
			if i%40 == 20 {
				_, _ = w.pool.Exec(ctx, `vacuum full watermill_processed_events`)
			}
		}
	}()
	pool := pgtest.PoolOn(t, w.url)
	config := claimsOfAMonth
	config.BatchSize = 500
	swept, err := newSweeper(t, pool, config).Sweep(ctx)
	close(stop)
	<-ended
	require.NoError(t, err)
	require.NotZero(t, swept[0].Rows)
	require.Zero(t, w.count(`select count(*) from (select event_id from want except select event_id from watermill_processed_events) as x`), "young ones gone")
	_, err = newSweeper(t, pool, config).Sweep(ctx)
	require.NoError(t, err)
	require.Zero(t, w.count(`select count(*) from watermill_processed_events where processed_at < now() - interval '30 days 5 minutes'`),
		"the first pass may have missed what vacuum full moved")
	require.Zero(t, w.count(`select count(*) from (select event_id from want except select event_id from watermill_processed_events) as x`))
	w.idle()
}
