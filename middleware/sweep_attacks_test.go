package middleware_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	once "github.com/watermill-once/watermill-once/middleware"
)

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
	t.Log(swept, err)
	require.NoError(t, err)
	require.Zero(t, w.count(`select count(*) from (select event_id from want except select event_id from watermill_processed_events) as x`), "young ones gone")
	t.Log("old left (vacuum full moves rows):", w.count(`select count(*) from watermill_processed_events where processed_at < now() - interval '30 days'`))
	_, err = newSweeper(t, pool, config).Sweep(ctx)
	require.NoError(t, err)
	require.Zero(t, w.count(`select count(*) from watermill_processed_events where processed_at < now() - interval '30 days 5 minutes'`))
	require.Zero(t, w.count(`select count(*) from (select event_id from want except select event_id from watermill_processed_events) as x`))
	w.idle()
}

func TestSweepStrangeTables(t *testing.T) {
	t.Parallel()
	for name, ddl := range map[string]string{
		"before delete returns null": `create function f() returns trigger language plpgsql as $$ begin return null; end $$; create trigger f before delete on watermill_processed_events for each row execute function f()`,
		"trigger raises":             `create function f() returns trigger language plpgsql as $$ begin raise 'no'; end $$; create trigger f before delete on watermill_processed_events for each row execute function f()`,
		"rule":                       `create rule r as on delete to watermill_processed_events do instead nothing`,
		"view":                       `alter table watermill_processed_events rename to x; create view watermill_processed_events as select * from x`,
		"truncated":                  `truncate watermill_processed_events`,
	} {
		w := newWorld(t, "pgx")
		w.addClaims("old", 1000, "31 days")
		w.addClaims("young", 10, "1 day")
		_, err := w.pool.Exec(t.Context(), ddl)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		swept, err := newSweeper(t, w.pool, claimsOfAMonth).Sweep(ctx)
		cancel()
		t.Log(name, swept, err)
		w.idle()
		require.Zero(t, w.count(`select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`))
	}
}

// The row is young again between the look and the delete, in each step.
var _ = once.ErrTooOld
