package ordering_test

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/ordering"
)

func TestForget(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	pool := pgtest.PoolOn(t, url)
	for _, driver := range []string{"pgx pool", "pgx", "postgres"} {
		_, err := pool.Exec(t.Context(), `truncate watermill_entity_versions`)
		require.NoError(t, err)
		guard := func(consumer, entity string, version int64, id string) bool {
			t.Helper()
			tx := begin(t, pool)
			applies, err := ordering.Config{}.Guard(t.Context(), tx, consumer, ordering.Position{Entity: entity, Version: version}, id)
			require.NoError(t, err)
			require.NoError(t, tx.Commit(t.Context()))
			return applies
		}
		forget := func(ids ...string) (n int64) {
			if driver == "pgx pool" {
				tx := begin(t, pool)
				n, err := ordering.Config{}.Forget(t.Context(), tx, "orders", ids...)
				require.NoError(t, err)
				require.NoError(t, tx.Commit(t.Context()))
				return n
			}
			db, err := sql.Open(driver, url)
			require.NoError(t, err)
			defer db.Close()
			tx, err := db.Begin()
			require.NoError(t, err)
			n, err = ordering.Config{}.ForgetSQLTx(t.Context(), tx, "orders", ids...)
			require.NoError(t, err)
			require.NoError(t, tx.Commit())
			return n
		}
		require.True(t, guard("orders", "card", 1, "e1"))
		require.True(t, guard("orders", "card", 2, "e2"))
		require.True(t, guard("orders", "account", 2, "e2"), "one event may change two entities")
		require.True(t, guard("ledger", "card", 2, "e2"))

		require.Zero(t, forget())
		require.Zero(t, forget("unknown", "e1"), "e1 is nobody's last event")
		require.False(t, guard("orders", "card", 1, "e1"))
		require.False(t, guard("orders", "card", 2, "e2"))
		require.EqualValues(t, 2, forget("e2", "e2", "e1"), driver)
		require.False(t, guard("orders", "card", 1, "e1"), "what came after it is applied")
		require.True(t, guard("orders", "card", 2, "e2"))
		require.False(t, guard("orders", "card", 2, "e2"), "once more, and no more")
		require.False(t, guard("ledger", "card", 2, "e2"), "another consumer's")
		require.True(t, guard("orders", "account", 3, "e3"))
	}
}

func TestForgetRefusesWhatNoEventCanHave(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	tx := begin(t, pool)
	_, err := ordering.Config{}.Forget(t.Context(), tx, "orders", "") // which would be every event without an id
	require.ErrorContains(t, err, "event id 1 of 1")
	_, err = ordering.Config{}.Forget(t.Context(), tx, "", "e1")
	require.ErrorContains(t, err, "consumer")
	_, err = ordering.Config{Table: "a.b.c"}.Forget(t.Context(), tx, "orders", "e1")
	require.ErrorContains(t, err, "Table")
	require.EqualValues(t, 'T', tx.Conn().PgConn().TxStatus(), "refused before it reached the server")
}
