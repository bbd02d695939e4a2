package dedupe_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
)

func exec(t *testing.T, pool *pgxpool.Pool, script string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), script) // without arguments: several statements may be in it
	require.NoError(t, err)
}

// catalog describes every table and index, to be compared.
func catalog(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
select c.oid || ' ' || n.nspname || '.' || c.relname || ' ' || coalesce(c.reloptions::text, '') || ' ' || coalesce(i.indexdef, '')
  || ' ' || coalesce((
    select string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || ' ' || a.attcollation::regcollation, ', ' order by a.attnum)
    from pg_attribute a
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped), '')
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join pg_indexes i on i.schemaname = n.nspname and i.indexname = c.relname
where n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
order by 1`)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return lines
}

var tableNames = []string{
	"", "claims", "shop.claims", "Shop.Claims", `we"ird`, "it's", "$1", "a$schema$b", "$schema$", "line\n--break", "select", "sp ace", `back\slash`,
	"watermill_processed_events_2", "'watermill_processed_events'",
	strings.Repeat("x", 62) + "1", strings.Repeat("x", 62) + "2", "shop." + strings.Repeat("x", 62) + "1", strings.Repeat("é", 31),
}

func TestSchemaUnderEveryName(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `create schema shop; create schema "Shop"`)
	for _, name := range tableNames {
		config := dedupe.Config{Table: name}
		require.NoError(t, config.Validate())
		exec(t, pool, config.Schema())
		before := catalog(t, pool)
		exec(t, pool, config.Schema())
		require.Equal(t, before, catalog(t, pool), "the second run changes nothing")

		tx := begin(t, pool)
		for _, want := range []bool{true, false} {
			fresh, err := config.Claim(t.Context(), tx, "orders", "e1")
			require.NoError(t, err, name)
			require.Equal(t, want, fresh)
		}
		require.NoError(t, tx.Commit(t.Context()))
	}
	require.Len(t, catalog(t, pool), 3*len(tableNames), "a table, its key and its index, each under its own name")
}

func TestSchemaFindsTheTableWhereStatementsFindIt(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pool := pgtest.PoolOn(t, url)
	exec(t, pool, `create schema shop; set search_path = shop; `+dedupe.Config{}.Schema()+` reset search_path`)
	before := catalog(t, pool)
	exec(t, pool, `set search_path = public, shop; `+dedupe.Config{}.Schema())
	require.Equal(t, before, catalog(t, pool))
}

// A table made before a column was thought of gets it, and keeps its rows.
func TestSchemaAddsWhatAnOlderTableLacks(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `create table watermill_processed_events (
		consumer text collate "C" not null,
		event_id text collate "C" not null,
		processed_at timestamptz not null default now(),
		primary key (consumer, event_id));
	insert into watermill_processed_events values ('orders', 'e1')`)
	exec(t, pool, dedupe.Config{}.Schema())
	exec(t, pool, `update watermill_processed_events set digest = '\x00'`)

	exec(t, pool, `alter table watermill_processed_events drop column digest`)
	exec(t, pool, dedupe.Config{}.Schema())
	exec(t, pool, `select consumer, event_id, processed_at, digest from watermill_processed_events`)
	tx := begin(t, pool)
	fresh, err := dedupe.Config{}.Claim(t.Context(), tx, "orders", "e1")
	require.NoError(t, err)
	require.False(t, fresh)
}

// Where all is there, the script waits for nobody, nobody waits for it, and it needs no right to create.
func TestSchemaOnlyLooksWhereAllIsThere(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	writer := begin(t, pool)
	_, err := writer.Exec(t.Context(), dedupe.Config{}.ClaimSQL(), "orders", "e1")
	require.NoError(t, err)
	_, err = writer.Exec(t.Context(), "lock table watermill_processed_events in access exclusive mode") // more than any writer holds
	require.NoError(t, err)

	exec(t, pool, "create role once_reader_"+currentDatabase(t, pool))
	t.Cleanup(func() {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), "drop role once_reader_"+currentDatabase(t, pool))
		require.NoError(t, err)
	})
	boot := begin(t, pool)
	_, err = boot.Exec(t.Context(), `revoke create on schema public from public; set local lock_timeout = 1;
		set local role once_reader_`+currentDatabase(t, pool)+`; `+dedupe.Config{}.Schema())
	require.NoError(t, err)
	var locks int
	require.NoError(t, boot.QueryRow(t.Context(), `select count(*) from pg_locks
		where pid = pg_backend_pid() and relation = 'watermill_processed_events'::regclass`).Scan(&locks))
	require.Zero(t, locks)
}

func currentDatabase(t *testing.T, pool *pgxpool.Pool) string {
	return pool.Config().ConnConfig.Database
}

func TestSchemaOfABadConfigIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, name := range []string{"a.b.c", ".", strings.Repeat("x", 64), "a\x00"} {
		config := dedupe.Config{Table: name}
		require.Error(t, config.Validate())
		_, err := pool.Exec(t.Context(), config.Schema())
		require.Error(t, err)
		_, err = pool.Exec(t.Context(), config.ClaimSQL(), "orders", "e1")
		require.Error(t, err)
	}
	require.Empty(t, catalog(t, pool))
}
