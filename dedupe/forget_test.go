package dedupe_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
)

func claimAll(t *testing.T, pool *pgxpool.Pool, consumer string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		_, err := pool.Exec(t.Context(), dedupe.Config{}.ClaimSQL(), consumer, id)
		require.NoError(t, err)
	}
}

func claimed(t *testing.T, pool *pgxpool.Pool) (ids []string) {
	t.Helper()
	rows, err := pool.Query(t.Context(), `select consumer || ' ' || event_id from watermill_processed_events order by 1`)
	require.NoError(t, err)
	ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return ids
}

func TestForget(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	pool := pgtest.PoolOn(t, url)
	odd := []string{`"quoted", {a}`, `<&>\`, "e\u2028", "日本"}
	for _, driver := range []string{"pgx pool", "pgx", "postgres"} {
		_, err := pool.Exec(t.Context(), `truncate watermill_processed_events`)
		require.NoError(t, err)
		claimAll(t, pool, "orders", append(odd, "e1", "e2")...)
		claimAll(t, pool, "ledger", "e1")
		forget := func(ids ...string) (n int64) {
			if driver == "pgx pool" {
				tx := begin(t, pool)
				n, err := dedupe.Config{}.Forget(t.Context(), tx, "orders", ids...)
				require.NoError(t, err)
				require.NoError(t, tx.Commit(t.Context()))
				return n
			}
			db, err := sql.Open(driver, url)
			require.NoError(t, err)
			defer db.Close()
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			require.NoError(t, err)
			n, err = dedupe.Config{}.ForgetSQLTx(t.Context(), tx, "orders", ids...)
			require.NoError(t, err)
			require.NoError(t, tx.Commit())
			return n
		}
		require.Zero(t, forget())
		require.Zero(t, forget("unknown"))
		require.EqualValues(t, 1, forget("e1", "unknown", "e1"), driver)
		require.EqualValues(t, 4, forget(odd...), driver)
		require.Equal(t, []string{"ledger e1", "orders e2"}, claimed(t, pool), driver)
	}
}

func TestForgetRefusesWhatNoClaimCanHave(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	tx := begin(t, pool)
	_, err := dedupe.Config{}.Forget(t.Context(), tx, "orders", "e1", "")
	require.ErrorIs(t, err, dedupe.ErrInvalidKey)
	require.ErrorContains(t, err, "2 of 2")
	_, err = dedupe.Config{}.Forget(t.Context(), tx, "", "e1")
	require.ErrorContains(t, err, "consumer")
	_, err = dedupe.Config{Table: "a.b.c"}.Forget(t.Context(), tx, "orders", "e1")
	require.ErrorContains(t, err, "Table")
	require.EqualValues(t, 'T', tx.Conn().PgConn().TxStatus(), "refused before it reached the server")
}

// An event that is being handled has a claim that nobody else can see yet.
func TestForgetWaitsForTheEventBeingHandled(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	for name, test := range map[string]struct {
		end  func(pgx.Tx, context.Context) error
		want int64
	}{
		"it commits":    {pgx.Tx.Commit, 1},
		"it rolls back": {pgx.Tx.Rollback, 0},
	} {
		t.Run(name, func(t *testing.T) {
			handling := begin(t, pool)
			fresh, err := dedupe.Config{}.Claim(t.Context(), handling, "orders", "e1")
			require.NoError(t, err)
			require.True(t, fresh)

			forgetting := begin(t, pool)
			type result struct {
				n   int64
				err error
			}
			done := make(chan result)
			go func() {
				n, err := dedupe.Config{}.Forget(t.Context(), forgetting, "orders", "e0", "e1")
				done <- result{n, err}
			}()
			waitForLock(t, pool, forgetting.Conn().PgConn().PID())

			require.NoError(t, test.end(handling, t.Context()))
			require.Equal(t, result{test.want, nil}, <-done)

			// The next delivery waits for the end of Forget's transaction, and is fresh.
			next := make(chan bool)
			redelivery := begin(t, pool)
			go func() {
				fresh, _ := dedupe.Config{}.Claim(t.Context(), redelivery, "orders", "e1")
				next <- fresh
			}()
			waitForLock(t, pool, redelivery.Conn().PgConn().PID())
			require.NoError(t, forgetting.Commit(t.Context()))
			require.True(t, <-next)
			require.NoError(t, redelivery.Rollback(t.Context()))
		})
	}
}
