package middleware_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	once "github.com/watermill-once/watermill-once/middleware"
)

func TestSweepOfOddTables(t *testing.T) {
	t.Parallel()
	const (
		all  = 1010
		deny = "middleware: sweep \"watermill_processed_events\": "
	)
	for name, test := range map[string]struct {
		ddl  string
		err  string
		left int
	}{
		"a trigger keeps the rows": {`create function keep() returns trigger language plpgsql as $$ begin return null; end $$;
			create trigger keep before delete on watermill_processed_events for each row execute function keep()`, "", all},
		"a trigger raises": {`create function deny() returns trigger language plpgsql as $$ begin raise 'no'; end $$;
			create trigger deny before delete on watermill_processed_events for each row execute function deny()`, deny + "ERROR: no (SQLSTATE P0001)", all},
		"a rule keeps the rows": {`create rule keep as on delete to watermill_processed_events do instead nothing`, "", all},
		"a view": {`alter table watermill_processed_events rename to claims;
			create view watermill_processed_events as select * from claims`, deny + "it is no plain table: what is partitioned is swept by dropping partitions", all},
		"truncated": {`truncate watermill_processed_events`, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "pgx")
			w.addClaims("old", 1000, "31 days")
			w.addClaims("young", 10, "1 day")
			_, err := w.pool.Exec(t.Context(), test.ddl)
			require.NoError(t, err)
			swept, err := newSweeper(t, w.pool, claimsOfAMonth).Sweep(t.Context())
			if test.err != "" {
				require.EqualError(t, err, test.err)
			} else {
				require.NoError(t, err)
			}
			require.Zero(t, swept[0].Rows)
			require.Equal(t, test.left, w.claims())
			w.idle()
			require.Zero(t, w.count(`select count(*) from pg_locks
				where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`))
		})
	}
}

// A row's place is one in its own table. A child of the table has rows in the same places, and is not swept.
func TestSweepOfATableWithChildren(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	w.addClaims("young", 100, "0 days")
	_, err := w.pool.Exec(t.Context(), `
		create table archive () inherits (watermill_processed_events);
		insert into archive (consumer, event_id, processed_at)
		select 'test', 'old' || n, now() - interval '31 days' from generate_series(1, 100) as n`)
	require.NoError(t, err)
	swept, err := newSweeper(t, w.pool, claimsOfAMonth).Sweep(t.Context())
	require.NoError(t, err)
	require.Zero(t, swept[0].Rows)
	require.Equal(t, 100, w.count(`select count(*) from only watermill_processed_events`))
	require.Equal(t, 100, w.count(`select count(*) from archive`))
}

func TestSweepMeetsInfinity(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	_, err := w.pool.Exec(t.Context(), `insert into watermill_processed_events (consumer, event_id, processed_at) values ('test', 'for ever', 'infinity')`)
	require.NoError(t, err)
	w.addClaims("old", 100, "31 days")
	_, err = newSweeper(t, w.pool, claimsOfAMonth).Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, w.claims())
}

func TestSweepMeetsAncient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	_, err := w.pool.Exec(t.Context(), `insert into watermill_processed_events (consumer, event_id, processed_at) values ('test', 'a', '4713-01-01 BC'), ('test', 'b', '294276-01-01')`)
	require.NoError(t, err)
	_, err = newSweeper(t, w.pool, once.SweeperConfig{ClaimsAge: 1<<63 - 1, BrokerRetention: 1}).Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, w.claims())
}
