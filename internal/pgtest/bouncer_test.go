package pgtest_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
)

func TestBouncerGivesEachTransactionAnotherBackend(t *testing.T) {
	t.Parallel()
	url := pgtest.Bouncer(t, pgtest.URL(t))
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	config.DefaultQueryExecMode = pgx.QueryExecModeExec

	// Two transactions at once, so that there are two backends to take turns.
	connect := func() *pgx.Conn {
		conn, err := pgx.ConnectConfig(t.Context(), config)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
		return conn
	}
	one, other := connect(), connect()
	tx, err := other.Begin(t.Context())
	require.NoError(t, err)
	_, err = one.Exec(t.Context(), "create table made (id int)")
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))

	seen := map[string]bool{}
	for range 10 {
		var pid int
		require.NoError(t, one.QueryRow(t.Context(), "select pg_backend_pid() from (select count(*) from made) m").Scan(&pid))
		seen[strconv.Itoa(pid)] = true
	}
	require.Greater(t, len(seen), 1)
}
