package ordering_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/ordering"
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
	"watermill_entity_versions_2", "'watermill_entity_versions'",
	strings.Repeat("x", 62) + "1", strings.Repeat("x", 62) + "2", "shop." + strings.Repeat("x", 62) + "1", strings.Repeat("é", 31),
}

func TestSchemaUnderEveryName(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `create schema shop; create schema "Shop"`)
	for _, name := range tableNames {
		config := ordering.Config{Table: name}
		require.NoError(t, config.Validate())
		exec(t, pool, config.Schema())
		before := catalog(t, pool)
		exec(t, pool, config.Schema())
		require.Equal(t, before, catalog(t, pool), "the second run changes nothing")

		tx := begin(t, pool)
		for _, want := range []bool{true, false} {
			applies, err := config.Guard(t.Context(), tx, "cards", ordering.Position{Entity: "card"}, "e1")
			require.NoError(t, err, name)
			require.Equal(t, want, applies)
		}
		require.NoError(t, tx.Commit(t.Context()))
	}
	require.Len(t, catalog(t, pool), 2*len(tableNames), "a table and its key, each under its own name")
}

func TestSchemaFindsTheTableWhereStatementsFindIt(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pool := pgtest.PoolOn(t, url)
	exec(t, pool, `create schema shop; set search_path = shop; `+ordering.Config{}.Schema()+` reset search_path`)
	before := catalog(t, pool)
	exec(t, pool, `set search_path = public, shop; `+ordering.Config{}.Schema())
	require.Equal(t, before, catalog(t, pool))
}

// Where all is there, the script waits for nobody, nobody waits for it, and it needs no right to create.
func TestSchemaOnlyLooksWhereAllIsThere(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	writer := begin(t, pool)
	_, err := writer.Exec(t.Context(), ordering.Config{}.GuardSQL(), "cards", "card", 1, "", "e1", false)
	require.NoError(t, err)
	_, err = writer.Exec(t.Context(), "lock table watermill_entity_versions in access exclusive mode") // more than any writer holds
	require.NoError(t, err)

	exec(t, pool, "create role once_reader_"+currentDatabase(t, pool))
	t.Cleanup(func() {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), "drop role once_reader_"+currentDatabase(t, pool))
		require.NoError(t, err)
	})
	boot := begin(t, pool)
	_, err = boot.Exec(t.Context(), `revoke create on schema public from public; set local lock_timeout = 1;
		set local role once_reader_`+currentDatabase(t, pool)+`; `+ordering.Config{}.Schema())
	require.NoError(t, err)
	var locks int
	require.NoError(t, boot.QueryRow(t.Context(), `select count(*) from pg_locks
		where pid = pg_backend_pid() and relation = 'watermill_entity_versions'::regclass`).Scan(&locks))
	require.Zero(t, locks)
}

func currentDatabase(t *testing.T, pool *pgxpool.Pool) string {
	return pool.Config().ConnConfig.Database
}

func TestSchemaOfABadConfigIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, name := range []string{"a.b.c", ".", strings.Repeat("x", 64), "a\x00"} {
		config := ordering.Config{Table: name}
		require.Error(t, config.Validate())
		_, err := pool.Exec(t.Context(), config.Schema())
		require.Error(t, err)
		_, err = pool.Exec(t.Context(), config.GuardSQL(), "cards", "card", 1, "", "e1", false)
		require.Error(t, err)
	}
	require.Empty(t, catalog(t, pool))
}
