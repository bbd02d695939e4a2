package middleware_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	osexec "os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

const allTables = `select count(*) from pg_tables
	where tablename in ('watermill_processed_events', 'watermill_entity_versions', 'watermill_outbox', 'watermill_effects')`

// Eight processes boot at once on an empty database, each over another driver than the last.
func TestSchemaOnConcurrentBoots(t *testing.T) {
	t.Parallel()
	for range 3 {
		url := pgtest.URL(t)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				child := osexec.Command(os.Args[0], "-test.run=^TestSchemaChild$", "-test.count=1")
				child.Env = append(os.Environ(), "SCHEMA_URL="+url, fmt.Sprintf("SCHEMA_DRIVER=%d", i%3))
				if out, err := child.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 4, (&world{t: t, pool: pgtest.PoolOn(t, url)}).count(allTables))
	}
}

// TestSchemaChild is one of those processes.
func TestSchemaChild(t *testing.T) {
	url := os.Getenv("SCHEMA_URL")
	if url == "" {
		return // run by TestSchemaOnConcurrentBoots
	}
	w := &world{t: t, driver: []string{"pgx", "sql-pgx", "sql-pq"}[os.Getenv("SCHEMA_DRIVER")[0]-'0']}
	require.NoError(t, once.InitializeSchema(t.Context(), w.open(url)))
}

// Where everything is there, a boot during a long transaction waits for nobody, and nobody for it.
func TestSchemaDoesNotWaitForWriters(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		tx, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(context.WithoutCancel(t.Context()))
		for _, write := range []string{
			`insert into watermill_processed_events (consumer, event_id) values ('a', 'b')`,
			`insert into watermill_entity_versions (consumer, entity, version, tie_break, event_id) values ('a', 'b', 1, '', 'x')`,
			`insert into watermill_outbox (uuid, topic, key, payload, metadata, transaction_id) values ('u', 't', 'k', '', '{}', pg_current_xact_id())`,
		} {
			_, err = tx.Exec(t.Context(), write)
			require.NoError(t, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		require.NoError(t, once.InitializeSchema(ctx, w.db))
	})
}

func TestSchemaOfAConfig(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	_, err := pool.Exec(t.Context(), `create schema app`)
	require.NoError(t, err)
	config := once.Config{
		Dedupe:   dedupe.Config{Table: "app.Seen Events"},
		Ordering: ordering.Config{Position: byMetadata.Position, Table: `app.ver"sions`},
	}
	w := &world{t: t, driver: "pgx", pool: pool, db: once.Pgx(pool)}
	for range 2 { // twice changes nothing
		require.NoError(t, once.InitializeSchema(t.Context(), w.db, config))
	}
	require.Equal(t, 2, w.count(`select count(*) from pg_tables where schemaname = 'app'`))
	require.Zero(t, w.count(allTables), "no more than what is named")
	_, err = pool.Exec(t.Context(), effects)
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, deliver(t, w.consume(config, apply), versioned("event", "card", "1")))
	}
	require.Equal(t, 1, w.effects())

	require.ErrorContains(t, once.InitializeSchema(t.Context(), w.db, dedupe.Config{Table: "a.b.c"}), "Table")
}

func TestSchemaOfNothing(t *testing.T) {
	t.Parallel()
	for _, db := range []once.DB{nil, once.Pgx(nil), once.SQL(nil)} {
		require.ErrorContains(t, once.InitializeSchema(t.Context(), db), "nil")
	}
	w := newWorld(t, "pgx")
	require.ErrorContains(t, once.InitializeSchema(t.Context(), w.db, (*outbox.Publisher)(nil)), "nil")
	require.ErrorContains(t, once.InitializeSchema(t.Context(), w.db, nil), "nil")
}

// The files that users copy into their migrations are what InitializeSchema runs.
func TestSchemaFilesAreComplete(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	db, err := sql.Open("postgres", url)
	require.NoError(t, err)
	defer db.Close()
	for _, file := range []string{"dedupe/schema.sql", "dedupe/effects_schema.sql", "ordering/schema.sql", "outbox/schema.sql"} {
		text, err := os.ReadFile("../" + file)
		require.NoError(t, err)
		require.NotContains(t, string(text), "%s")
		_, err = db.ExecContext(t.Context(), string(text))
		require.NoError(t, err, file)
	}
	files := dump(t, pgtest.PoolOn(t, url))
	other := pgtest.Pool(t)
	require.NoError(t, once.InitializeSchema(t.Context(), once.Pgx(other)))
	require.Equal(t, dump(t, other), files)
	require.NotEmpty(t, files)
}

// dump lists all columns, constraints and indexes.
func dump(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	var lines []string
	require.NoError(t, pool.QueryRow(t.Context(), `
		select array_agg(line order by line) from (
			select format('%s.%s %s %s', table_name, column_name, data_type, column_default) as line
				from information_schema.columns where table_schema = 'public'
			union all select indexdef from pg_indexes where schemaname = 'public'
			union all select conrelid::regclass || ' ' || pg_get_constraintdef(oid) from pg_constraint where connamespace = 'public'::regnamespace
		) x`).Scan(&lines))
	return strings.Join(lines, "\n")
}
