package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

// shape is all that the catalogue says about a database's tables.
func shape(t *testing.T, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}) string {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		select format('%s.%s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid))
		from pg_class c join pg_attribute a on a.attrelid = c.oid left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
		where c.relnamespace = 'public'::regnamespace and a.attnum > 0 and not a.attisdropped
		union all
		select conname || ' ' || pg_get_constraintdef(oid) from pg_constraint where connamespace = 'public'::regnamespace
		union all
		select indexdef from pg_indexes where schemaname = 'public'
		order by 1`)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return strings.Join(lines, "\n")
}

func TestSchemaIsIdempotent(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	schema := outbox.Config{}.Schema()
	inTx(t, pool, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), schema)
		require.NoError(t, err)
	})
	before := shape(t, pool)
	require.Contains(t, before, "watermill_outbox.offset bigint")
	_, err := pool.Exec(t.Context(), schema+schema)
	require.NoError(t, err)
	require.Equal(t, before, shape(t, pool))
}

func TestSchemaOfEveryName(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, topic := range []string{"outbox", "Upper", "a.b", "$schema$", "$$", "$sschema$$schema$", "a:b-c_d", strings.Repeat("x", 42)} {
		config := outbox.Config{Topic: topic}
		for range 2 {
			_, err := pool.Exec(t.Context(), config.Schema())
			require.NoError(t, err, topic)
		}
		p := newPublisher(t, config)
		require.Equal(t, config.Schema(), p.Schema())
		inTx(t, pool, func(tx pgx.Tx) {
			require.NoError(t, p.PublishTx(t.Context(), tx, "topic", newMessage("key", "")))
			require.NoError(t, p.PublishTx(t.Context(), tx, "topic", numbered(2, 2)...))
		})
		require.Len(t, contents(t, pool, config), 3)
		var sequence string
		require.NoError(t, pool.QueryRow(t.Context(), `select pg_get_serial_sequence($1, 'offset')`, config.Table()).Scan(&sequence))
		require.Contains(t, sequence, "_offset_seq", "the name was cut off")
	}
	_, err := pool.Exec(t.Context(), outbox.Config{Topic: `no"name$fault$'`}.Schema())
	require.ErrorContains(t, err, "holds other than letters")
}

func TestSchemaIsSafeWhenManyBootAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	const processes, rounds = 8, 20
	starts := make([]chan string, processes)
	results := make(chan error)
	for i := range starts {
		conn, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
		starts[i] = make(chan string)
		t.Cleanup(func() { close(starts[i]) })
		go func() {
			for schema := range starts[i] {
				_, err := conn.Exec(context.Background(), schema)
				results <- err
			}
		}()
	}
	for round := range rounds {
		schema := outbox.Config{Topic: fmt.Sprint("round", round)}.Schema()
		for _, start := range starts {
			start <- schema
		}
		var faults []error
		for range starts {
			faults = append(faults, <-results)
		}
		require.NoError(t, errors.Join(faults...))
	}
}

func TestSchemaWaitsForNobodyWhereAllIsThere(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	writer, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = writer.Rollback(context.Background()) }()
	_, err = writer.Exec(t.Context(), `lock table watermill_outbox in access exclusive mode`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `set lock_timeout = '10s'; `+outbox.Config{}.Schema())
	require.NoError(t, err)
}

func TestSchemaNeedsNoRightsWhereAllIsThere(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	inTx(t, pool, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), `create role nobody_outbox; set local role nobody_outbox; `+outbox.Config{}.Schema())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `reset role; drop role nobody_outbox`)
		require.NoError(t, err)
	})
}

func TestSchemaAddsMissingColumns(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	want := shape(t, pool)
	for _, column := range []string{"attempts", "last_error", "next_attempt_at", "parked_at", "sent_at"} {
		_, err := pool.Exec(t.Context(), fmt.Sprintf(`alter table watermill_outbox drop column %s`, column))
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), outbox.Config{}.Schema())
		require.NoError(t, err)
		require.Equal(t, want, shape(t, pool), column)
	}
}

func TestSchemaRefusesATableOfAnotherShape(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	_, err := pool.Exec(t.Context(), `create table watermill_outbox ("offset" bigserial, uuid varchar(36))`)
	require.NoError(t, err)
	before := shape(t, pool)
	_, err = pool.Exec(t.Context(), outbox.Config{}.Schema())
	require.ErrorContains(t, err, "is no outbox")
	require.Equal(t, before, shape(t, pool))
}

func TestRowsThatNoRelayCouldSendAreKeptOut(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	insert := func(topic, metadata string) error {
		_, err := pool.Exec(t.Context(), `insert into watermill_outbox (uuid, topic, key, metadata) values ('u', $1, 'k', $2)`, topic, metadata)
		return err
	}
	for _, metadata := range []string{
		`{}`, ` { } `, `{"a":"b"}`, "\n{\t\"a\" : \"b\" ,\r\"c\":\"\"}\n", `{"a\"":"\\","b":"\"}"}`, `{"":""}`, `{"a":"1:2,{3}"}`, `{"a":"é\u00e9"}`,
		`{"a":"b","a":"c"}`, `{"a":"` + strings.Repeat("x", 100_000) + `"}`,
	} {
		require.NoError(t, insert("topic", metadata), metadata)
	}
	for _, metadata := range []string{
		`[]`, `["a"]`, `"a"`, `"{}"`, `1`, `null`, `true`, `{"a":1}`, `{"a":null}`, `{"a":true}`, `{"a":{}}`, `{"a":{"b":"c"}}`, `{"a":["b"]}`,
		`{"a":"b","c":1}`, `{"a":1,"b":"c"}`, `{"a":-1}`, `[{"a":"b"}]`, `{"a":"\"","b":{"c":"d"}}`,
	} {
		require.ErrorContains(t, insert("topic", metadata), "metadata_check", metadata)
	}
	require.ErrorContains(t, insert("", `{}`), "topic_check")
}
