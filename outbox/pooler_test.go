package outbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

// In whatever mode the pool works.
func TestARelayRefusesAPoolerWithoutSessions(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			address := newDatabase(t)
			through := pgtest.BouncerIn(t, mode, address)
			publish(t, pgtest.PoolOn(t, address), numbered(3, 3)...)
			for _, mode := range []pgx.QueryExecMode{
				pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
			} {
				config, err := pgxpool.ParseConfig(through)
				require.NoError(t, err)
				config.ConnConfig.DefaultQueryExecMode = mode
				pool, err := pgxpool.NewWithConfig(t.Context(), config)
				require.NoError(t, err)
				b := newBroker()
				require.ErrorIs(t, runRelay(t, pool, b, outbox.RelayConfig{}), outbox.ErrPooled)
				require.Empty(t, b.all())
				pool.Close()
			}
		})
	}
}

// Two relays, so that shards move and notifications come.
func TestARelayWorksBehindAPoolerInSessionMode(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	direct, pool := pgtest.PoolOn(t, address), pgtest.PoolOn(t, pgtest.BouncerIn(t, "session", address))
	b := newBroker()
	publish(t, direct, numbered(300, 30)...)
	stop := startRelay(t, pool, b, outbox.RelayConfig{})
	b.wait(t, 300)
	startRelay(t, pool, b, outbox.RelayConfig{})
	eventually(t, "both have shards", func() bool { return len(shares(t, direct)) == 2 })
	eventually(t, "both listen", func() bool { return listeners(t, direct, "outbox", "*") == 2 })
	stop()
	publish(t, direct, numbered(300, 30)...)
	b.wait(t, 600)
	drained(t, direct)
}

// What a pooler refuses because it is full, or gave up waiting for, is no sign of statement mode.
func TestAPoolerThatIsFullIsNoneInStatementMode(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	full := &pgconn.PgError{Code: "08P01", Severity: "FATAL", Message: "query_wait_timeout"}
	require.False(t, outbox.RefusesTransactions(t.Context(), pool, full))
}
