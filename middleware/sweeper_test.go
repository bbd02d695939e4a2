package middleware_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

const day = 24 * time.Hour

// newSweeper sweeps without pauses, unless config has one.
func newSweeper(t *testing.T, pool *pgxpool.Pool, config once.SweeperConfig) *once.Sweeper {
	t.Helper()
	if config.Pause == 0 {
		config.Pause = time.Nanosecond
	}
	sweeper, err := once.NewSweeper(pool, config, nil)
	require.NoError(t, err)
	return sweeper
}

var claimsOfAMonth = once.SweeperConfig{ClaimsAge: 30 * day, BrokerRetention: 7 * day}

// addClaims adds n claims of an age, named after the prefix.
func (w *world) addClaims(prefix string, n int, age string) {
	w.t.Helper()
	_, err := w.pool.Exec(w.t.Context(), `insert into watermill_processed_events (consumer, event_id, processed_at)
		select 'test', $1 || n, now() - $3::text::interval from generate_series(1, $2::int) as n`, prefix, n, age)
	require.NoError(w.t, err)
}

func (w *world) texts(query string) []string {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), query)
	require.NoError(w.t, err)
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(w.t, err)
	return texts
}

func TestSweeperRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	config := claimsOfAMonth
	config.Delay, config.Interval = time.Millisecond, time.Millisecond
	passes := make(chan once.Swept)
	config.OnSweep = func(ctx context.Context, s once.Swept) {
		select {
		case passes <- s:
		case <-ctx.Done():
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	sweeper := newSweeper(t, w.pool, config)
	go func() { ended <- sweeper.Run(ctx) }()
	for i := range 3 {
		w.addClaims(fmt.Sprint(i, "-"), 5, "31 days")
		for rows := int64(0); rows < 5; {
			rows += (<-passes).Rows
		}
		require.Zero(t, w.claims())
	}
	cancel()
	require.NoError(t, <-ended)
}

// The end of the context ends a pass between two batches, and Run with it.
func TestSweeperEndsInMidSweep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	w.addClaims("old", 10, "31 days")
	config := claimsOfAMonth
	config.BatchSize, config.Pause, config.Delay = 1, time.Hour, time.Nanosecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	logger := watermill.NewCaptureLogger()
	sweeper, err := once.NewSweeper(w.pool, config, logger)
	require.NoError(t, err)
	go func() { ended <- sweeper.Run(ctx) }()
	require.Eventually(t, func() bool { return w.claims() == 9 }, 20*time.Second, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, 9, w.claims())
	require.Empty(t, logger.Captured()[watermill.ErrorLogLevel], "the end is no error")
	w.idle()
	require.Zero(t, w.count(`select count(*) from (`+holder+`) as h`))
}

func TestNothingIsSweptByDefault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	w.addClaims("old", 10, "100 years")
	sweeper, err := once.NewSweeper(w.pool, once.SweeperConfig{Delay: time.Nanosecond, Interval: time.Nanosecond}, nil)
	require.NoError(t, err)
	swept, err := sweeper.Sweep(t.Context())
	require.NoError(t, err)
	require.Empty(t, swept)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- sweeper.Run(ctx) }()
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, 10, w.claims())
}

func TestSweeperFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	for fault, config := range map[string]once.SweeperConfig{
		"ClaimsAge needs BrokerRetention: a redelivery after the sweep would be handled twice":                           {ClaimsAge: day},
		"ClaimsAge (24h0m0s) is shorter than BrokerRetention (24h0m0.000000001s): a redelivery after the sweep would be": {ClaimsAge: day, BrokerRetention: day + 1},
		"VersionsAge needs BrokerRetention": {VersionsAge: day},
		"EffectsAge (1h0m0s) is shorter":    {EffectsAge: time.Hour, BrokerRetention: day},
		"ClaimsAge is negative":             {ClaimsAge: -1},
		"SentAge is negative":               {SentAge: -1},
		"BrokerRetention is negative":       {BrokerRetention: -1},
		"Claims: dedupe: Table":             {Claims: []dedupe.Config{{Table: "a.b.c"}}},
		"Versions: ordering: Table":         {Versions: []ordering.Config{{Table: "a.b.c"}}},
		"Effects: dedupe: Table":            {Effects: []dedupe.EffectsConfig{{Table: "a.b.c"}}},
		"Outboxes: one of them is nil":      {Outboxes: []*outbox.Publisher{nil}},
		"BatchSize is negative":             {BatchSize: -1},
		"Pause is negative":                 {Pause: -1},
		"Delay is negative":                 {Delay: -1},
		"Interval is negative":              {Interval: -1},
	} {
		_, err := once.NewSweeper(w.pool, config, nil)
		require.ErrorContains(t, err, fault)
	}
	_, err := once.NewSweeper(nil, once.SweeperConfig{ClaimsAge: -1}, nil)
	require.ErrorContains(t, err, "pool is nil")
	require.ErrorContains(t, err, "ClaimsAge", "all at once")
	_, err = once.NewSweeper(w.pool, once.SweeperConfig{ClaimsAge: day, BrokerRetention: day, SentAge: time.Nanosecond}, nil)
	require.NoError(t, err, "as long is long enough; what is sent needs no broker to have forgotten it")
	single := pgtest.PoolOn(t, w.url+"&pool_max_conns=1")
	_, err = once.NewSweeper(single, once.SweeperConfig{}, nil)
	require.ErrorContains(t, err, "a pass needs two")
}

// A table that cannot be swept is told of, and the others are swept.
func TestSweepWithoutTheRight(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	w.addClaims("old", 3, "31 days")
	role := "sweeper_of_" + w.texts(`select current_database()`)[0]
	_, err := w.pool.Exec(t.Context(), `create role `+role+`;
		grant select, update on watermill_processed_events to `+role+`;
		grant select, update, delete on watermill_outbox to `+role+`;
		create table events (processed_at timestamptz) partition by range (processed_at);
		insert into watermill_outbox (uuid, topic, key, sent_at) values ('old', 't', 'k', now() - interval '31 days')`)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := w.pool.Exec(context.WithoutCancel(t.Context()), `drop owned by `+role+`; drop role `+role)
		require.NoError(t, err)
	})
	pool := pgtest.PoolOn(t, w.url+"&role="+role)
	config := once.SweeperConfig{
		ClaimsAge: 30 * day, SentAge: 30 * day, BrokerRetention: day, Pause: time.Nanosecond, Delay: time.Nanosecond,
		Claims: []dedupe.Config{{}, {Table: "nowhere"}, {Table: "events"}},
	}
	swept, err := newSweeper(t, pool, config).Sweep(t.Context())
	require.Len(t, swept, 4)
	require.ErrorContains(t, err, `sweep "watermill_processed_events"`)
	require.ErrorContains(t, err, "permission denied")
	require.ErrorContains(t, err, `relation "nowhere" does not exist`)
	require.ErrorContains(t, err, "dropping partitions")
	require.ErrorIs(t, err, swept[0].Err)
	require.EqualValues(t, 1, swept[3].Rows)
	require.Equal(t, 3, w.claims())

	// Run logs it, and lives.
	logger := watermill.NewCaptureLogger()
	sweeper, err := once.NewSweeper(pool, config, logger)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- sweeper.Run(ctx) }()
	require.Eventually(t, func() bool { return len(logger.Captured()[watermill.ErrorLogLevel]) == 1 }, 20*time.Second, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	require.ErrorContains(t, logger.Captured()[watermill.ErrorLogLevel][0].Err, "permission denied")
}

func TestSweeperGoesOnWhenPostgreSQLIsBack(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	w := &world{t: t, driver: "pgx", url: server.URL("postgres"), pool: pgtest.PoolOn(t, server.URL("postgres"))}
	require.NoError(t, once.InitializeSchema(t.Context(), once.Pgx(w.pool)))
	w.addClaims("old", 10_000, "31 days")
	config := claimsOfAMonth
	config.BatchSize, config.Pause, config.Delay, config.Interval = 10, time.Millisecond, time.Nanosecond, 10*time.Millisecond
	logger := watermill.NewCaptureLogger()
	sweeper, err := once.NewSweeper(w.pool, config, logger)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- sweeper.Run(ctx) }()
	require.Eventually(t, func() bool { return w.claims() < 10_000 }, 20*time.Second, time.Millisecond)
	require.NoError(t, server.Kill())
	require.Eventually(t, func() bool { return len(logger.Captured()[watermill.ErrorLogLevel]) > 0 }, 20*time.Second, time.Millisecond)
	require.NoError(t, server.Restart(t.Context()))
	require.Eventually(t, func() bool { return w.pool.Ping(t.Context()) == nil }, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return w.claims() == 0 }, time.Minute, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
}
