package dedupe_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// newURL is that of a database with the default tables.
func newURL(t *testing.T) string {
	return pgtest.FromTemplate(t, "dedupe", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, dedupe.Config{}.Schema())
		return err
	})
}

func begin(t *testing.T, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

func TestClaim(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	claim := func(consumer, id string, commit bool) bool {
		t.Helper()
		tx := begin(t, pool)
		fresh, err := dedupe.Config{}.Claim(t.Context(), tx, consumer, id)
		require.NoError(t, err)
		if commit {
			require.NoError(t, tx.Commit(t.Context()))
		} else {
			require.NoError(t, tx.Rollback(t.Context()))
		}
		return fresh
	}
	require.True(t, claim("orders", "e1", false))
	require.True(t, claim("orders", "e1", true), "the rollback took the claim back")
	require.False(t, claim("orders", "e1", true))
	require.True(t, claim("ledger", "e1", true), "the scope is the consumer")
	require.True(t, claim("orders", "E1", true), "compared bytewise")
	require.True(t, claim("orders", "e1 ", true))
	require.True(t, claim("orders", "é", true))
	require.True(t, claim("orders", "e\u0301", true), "not normalized")
	require.True(t, claim(strings.Repeat("é", 256), strings.Repeat("😀", 128), true), "the longest")

	tx := begin(t, pool)
	for consumer, id := range map[string]string{"": "e1", "orders": "", "or\x00ders": "e1", "o": "\xff"} {
		_, err := dedupe.Config{}.Claim(t.Context(), tx, consumer, id)
		require.Error(t, err)
	}
	_, err := dedupe.Config{}.Claim(t.Context(), tx, "orders", "")
	require.ErrorIs(t, err, dedupe.ErrInvalidKey)
	require.EqualValues(t, 'T', tx.Conn().PgConn().TxStatus(), "refused before it reached the server")
	_, err = dedupe.Config{Table: "a.b.c"}.Claim(t.Context(), tx, "orders", "e1")
	require.ErrorContains(t, err, "Table")
}

// An empty id would be one that all events share. The table itself refuses it, for those who use ClaimSQL by hand.
func TestTableRefusesEmptyIDs(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	for _, args := range [][]any{{"orders", ""}, {"", ""}} {
		_, err := pool.Exec(t.Context(), dedupe.Config{}.ClaimSQL(), args...)
		var pgErr *pgconn.PgError
		require.ErrorAs(t, err, &pgErr)
		require.Equal(t, "23514", pgErr.Code)
	}
}

// A table made by hand without the key would take every copy for fresh.
func TestClaimNeedsTheKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, "create table watermill_processed_events (consumer text, event_id text, processed_at timestamptz)")
	exec(t, pool, dedupe.Config{}.Schema()) // adds columns, but does not repair
	tx := begin(t, pool)
	_, err := dedupe.Config{}.Claim(t.Context(), tx, "orders", "e1")
	require.ErrorContains(t, err, "42P10")
}

func TestClaimOnEveryDriver(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			config, err := pgxpool.ParseConfig(url)
			require.NoError(t, err)
			config.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			for i, id := range []string{"e1", "e1", `it's a "\ $1`} {
				tx := begin(t, pool)
				fresh, err := dedupe.Config{}.Claim(t.Context(), tx, mode.String(), id)
				require.NoError(t, err)
				require.Equal(t, i != 1, fresh)
				require.NoError(t, tx.Commit(t.Context()))
			}
		})
	}
	for _, driver := range []string{"pgx", "postgres"} {
		t.Run("database/sql "+driver, func(t *testing.T) {
			t.Parallel()
			db, err := sql.Open(driver, url)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			for i, id := range []string{"e1", "e1", `it's a "\ $1`} {
				tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
				require.NoError(t, err)
				fresh, err := dedupe.Config{}.ClaimSQLTx(t.Context(), tx, driver, id)
				require.NoError(t, err)
				require.Equal(t, i != 1, fresh)
				require.NoError(t, tx.Commit())
			}
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			_, err = dedupe.Config{}.ClaimSQLTx(t.Context(), tx, driver, "")
			require.ErrorIs(t, err, dedupe.ErrInvalidKey)
			require.NoError(t, tx.Rollback())
		})
	}
}

// Of two copies at once the second waits, and learns how the first ended.
func TestClaimWaitsForARival(t *testing.T) {
	t.Parallel()
	for name, commit := range map[string]bool{"commit": true, "rollback": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.PoolOn(t, newURL(t))
			first, second := begin(t, pool), begin(t, pool)
			fresh, err := dedupe.Config{}.Claim(t.Context(), first, "orders", "e1")
			require.NoError(t, err)
			require.True(t, fresh)

			pid := second.Conn().PgConn().PID()
			var secondErr error
			done := make(chan struct{})
			go func() {
				defer close(done)
				fresh, secondErr = dedupe.Config{}.Claim(t.Context(), second, "orders", "e1")
			}()
			waitForLock(t, pool, pid)
			if commit {
				require.NoError(t, first.Commit(t.Context()))
			} else {
				require.NoError(t, first.Rollback(t.Context()))
			}
			<-done
			require.NoError(t, secondErr)
			require.Equal(t, !commit, fresh)
		})
	}
}

// In stricter isolation levels the second copy cannot be told that it is one, since it must not see the first.
func TestClaimInRepeatableRead(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	strict, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = strict.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = strict.Exec(t.Context(), "select 1 from watermill_processed_events") // takes the snapshot
	require.NoError(t, err)
	tx := begin(t, pool)
	_, err = dedupe.Config{}.Claim(t.Context(), tx, "orders", "e1")
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	_, err = dedupe.Config{}.Claim(t.Context(), strict, "orders", "e1")
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Equal(t, "40001", pgErr.Code)
}

// waitForLock returns when the backend waits for a lock.
func waitForLock(t *testing.T, pool *pgxpool.Pool, pid uint32) {
	t.Helper()
	require.Eventually(t, func() bool {
		var waits bool
		err := pool.QueryRow(t.Context(), "select exists (select from pg_locks where pid = $1 and not granted)", int64(pid)).Scan(&waits)
		return err == nil && waits
	}, 20*time.Second, 2*time.Millisecond)
}

// Two contents under one id, by hand: the statement fails where the digests differ.
func TestClaimSQLComparesDigests(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	claims := dedupe.Config{Fingerprint: true}
	claim := func(id, payload string) (int64, error) {
		t.Helper()
		tag, err := pool.Exec(t.Context(), claims.ClaimSQL(), "orders", id, claims.Digest(message.NewMessage("", []byte(payload))))
		return tag.RowsAffected(), err
	}
	for _, step := range []struct {
		id, payload string
		fresh       int64
		mismatch    bool
	}{
		{"e1", "a", 1, false},
		{"e1", "a", 0, false},
		{"e1", "b", 0, true},
		{"e1", "a", 0, false},
		{"e2", "b", 1, false},
		{"e3", "", 1, false},
		{"e3", "b", 0, true},
	} {
		fresh, err := claim(step.id, step.payload)
		if step.mismatch {
			var refused *pgconn.PgError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, "23502", refused.Code)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, step.fresh, fresh)
	}
	require.Nil(t, dedupe.Config{}.Digest(message.NewMessage("", nil)))
	_, err := claims.Claim(t.Context(), begin(t, pool), "orders", "e4")
	require.ErrorContains(t, err, "Fingerprint")
}
