package middleware_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	once "github.com/watermill-once/watermill-once/middleware"
)

// halted is a sweeper in the pause after its first batch, of one row.
func (w *world) halted(pool *pgxpool.Pool) (result chan error, stop func()) {
	w.t.Helper()
	config := claimsOfAMonth
	config.BatchSize, config.Pause = 1, time.Hour
	ctx, cancel := context.WithCancel(w.t.Context())
	before, result := w.claims(), make(chan error, 1)
	sweeper := newSweeper(w.t, pool, config)
	go func() {
		_, err := sweeper.Sweep(ctx)
		result <- err
	}()
	require.Eventually(w.t, func() bool { return w.claims() < before }, 20*time.Second, time.Millisecond)
	return result, cancel
}

// holder gives the backend that holds the lock of a pass.
const holder = `select pid from pg_locks where locktype = 'advisory' and granted and classid = 2003661687
	and database = (select oid from pg_database where datname = current_database())`

func TestOneSweeperAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	w.addClaims("old", 10, "31 days")
	first, stop := w.halted(w.pool)
	defer stop()

	second := newSweeper(t, w.pool, claimsOfAMonth)
	swept, err := second.Sweep(t.Context())
	require.NoError(t, err)
	require.True(t, swept[0].Elsewhere)
	require.Zero(t, swept[0].Rows)
	require.Equal(t, 9, w.claims())

	// Another table is free meanwhile.
	_, err = w.pool.Exec(t.Context(), `insert into watermill_outbox (uuid, topic, key, sent_at) values ('old', 't', 'k', now() - interval '1 hour')`)
	require.NoError(t, err)
	swept, err = newSweeper(t, w.pool, once.SweeperConfig{SentAge: time.Minute}).Sweep(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, swept[0].Rows)

	// In its pauses the first one keeps no vacuum from its work, nor any row from anybody.
	require.Equal(t, 1, w.count(`select count(*) from pg_stat_activity where pid = (`+holder+`)
		and state = 'idle in transaction' and backend_xmin is null and backend_xid is null`))

	// It dies. Whoever comes next takes over.
	require.Equal(t, 1, w.count(`select pg_terminate_backend(pid)::int from (`+holder+`) as h`))
	require.Eventually(t, func() bool { return w.count(`select count(*) from (`+holder+`) as h`) == 0 }, 20*time.Second, time.Millisecond)
	swept, err = second.Sweep(t.Context())
	require.NoError(t, err)
	require.False(t, swept[0].Elsewhere)
	require.EqualValues(t, 9, swept[0].Rows)
	stop()
	require.ErrorIs(t, <-first, context.Canceled)
}

// A sweeper that has lost its lock does not go on beside the one that may have it now.
func TestSweeperThatLostItsLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	w.addClaims("old", 10_000, "31 days")
	config := claimsOfAMonth
	config.BatchSize, config.Pause = 1, 10*time.Millisecond
	result := make(chan error, 1)
	sweeper := newSweeper(t, w.pool, config)
	go func() {
		_, err := sweeper.Sweep(t.Context())
		result <- err
	}()
	require.Eventually(t, func() bool { return w.claims() < 10_000 }, 20*time.Second, time.Millisecond)
	require.Equal(t, 1, w.count(`select pg_terminate_backend(pid)::int from (`+holder+`) as h`))
	require.Error(t, <-result)
	require.Greater(t, w.claims(), 0)
}

// Two at once from the start: every row is deleted once, and one of them did it all.
func TestSweepersAtTheSameTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	w.addClaims("old", 5000, "31 days")
	config := claimsOfAMonth
	config.BatchSize = 100
	all := make([]once.Swept, 4)
	var wg sync.WaitGroup
	for i := range all {
		sweeper := newSweeper(t, pgtest.PoolOn(t, w.url), config)
		wg.Go(func() {
			swept, err := sweeper.Sweep(context.Background())
			if err != nil {
				t.Error(err)
			}
			all[i] = swept[0]
		})
	}
	wg.Wait()
	var rows int64
	for _, s := range all {
		rows += s.Rows
		require.Zero(t, s.Rows%5000, "all or nothing")
	}
	require.EqualValues(t, 5000, rows)
	require.Zero(t, w.claims())
}

func TestSweeperThroughPgBouncer(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "pgx")
			config, err := pgxpool.ParseConfig(pgtest.Bouncer(t, w.url))
			require.NoError(t, err)
			config.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(context.Background(), config)
			require.NoError(t, err)
			defer pool.Close()
			w.addClaims("young", 100, "29 days")
			w.addClaims("old", 2500, "31 days")

			first, stop := w.halted(pool)
			defer stop()
			sweep := claimsOfAMonth
			sweep.BatchSize = 100
			second := newSweeper(t, pool, sweep)
			swept, err := second.Sweep(t.Context())
			require.NoError(t, err)
			require.True(t, swept[0].Elsewhere)
			stop()
			require.ErrorIs(t, <-first, context.Canceled)
			require.Eventually(t, func() bool { return w.count(`select count(*) from (`+holder+`) as h`) == 0 }, 20*time.Second, time.Millisecond)
			swept, err = second.Sweep(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 2499, swept[0].Rows)
			require.Equal(t, 100, w.claims())
		})
	}
}
