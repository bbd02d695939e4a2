package main

import (
	"bytes"
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")) // sarama's, for the life of the program
}

func TestRun(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"kafka://embedded", "gochannel://"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			out := runToItsEnd(t, config{broker: broker, events: 300})
			require.Contains(t, out, " of 300 events, ")
			require.NotContains(t, out, ", 0 of them after a newer one")
			require.NotContains(t, out, "WRONG")
			require.Contains(t, out, "\nboth services hold what the events say of 6 orders\n")
		})
	}
}

// On a server that is there already, which also is the broker, a run leaves nothing of itself but topics.
func TestRunOnAServerThatStays(t *testing.T) {
	t.Parallel()
	server, err := pgserver.Start(t.Context(), pgserver.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	address := server.URL("postgres")
	require.Contains(t, runToItsEnd(t, config{broker: address, database: address, events: 50}), "both services hold")

	conn, err := pgx.Connect(t.Context(), address)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	var left int
	require.NoError(t, conn.QueryRow(t.Context(), `select count(*) from pg_namespace where nspname like 'orders\_%'`).Scan(&left))
	require.Zero(t, left)
}

func TestRunEndsWhenInterrupted(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"kafka://embedded", "gochannel://"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			// What is logged first is that the Router starts.
			c := config{broker: broker, events: 100_000, logger: interrupter{interrupt: interrupt}}
			require.ErrorIs(t, run(ctx, c, new(bytes.Buffer)), context.Canceled)
		})
	}
}

type interrupter struct {
	watermill.NopLogger
	interrupt func()
}

func (i interrupter) Info(string, watermill.LogFields) { i.interrupt() }

func (i interrupter) With(watermill.LogFields) watermill.LoggerAdapter { return i }

func TestReportFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	db, err := openDatabase(t.Context(), "")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.close()) }()
	feed := newFeed(1, 1)
	e := feed.events[0]
	_, err = db.orders.Exec(t.Context(), ordersTable)
	require.NoError(t, err)
	_, err = db.billing.Exec(t.Context(), billsTable)
	require.NoError(t, err)

	var out bytes.Buffer
	check := func() error { return report(t.Context(), db, feed, new(tally), new(repeater), &out) }
	require.ErrorContains(t, check(), "1 of 1 orders are wrong")
	require.Contains(t, out.String(), "WRONG")

	_, err = db.orders.Exec(t.Context(), upsertOrder, e.Order, e.Status, e.Total, e.Version)
	require.NoError(t, err)
	require.ErrorContains(t, check(), "1 of 1 orders are wrong")
	_, err = db.billing.Exec(t.Context(), upsertBill, e.Order, e.Status, e.Total)
	require.NoError(t, err)
	require.NoError(t, check())

	_, err = db.billing.Exec(t.Context(), upsertBill, "another", e.Status, e.Total)
	require.NoError(t, err)
	require.ErrorContains(t, check(), "1 are there that no event names")
}

func TestRunReportsWhatItCannotUse(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]config{
		"unknown scheme":  {broker: "pulsar://localhost", events: 1},
		"at least one":    {broker: "gochannel://"},
		"DATABASE_URL: ":  {broker: "gochannel://", events: 1, database: "nonsense"},
		"DATABASE_URL is": {broker: "gochannel://", events: 1, database: "mysql://user:secret@127.0.0.1/db?a=b"},
	} {
		err := run(t.Context(), c, new(bytes.Buffer))
		require.ErrorContains(t, err, text)
		require.NotContains(t, err.Error(), "secret")
	}
}

func runToItsEnd(t *testing.T, c config) string {
	t.Helper()
	c.seed, c.logger = 1, watermill.NopLogger{}
	var out bytes.Buffer
	err := run(t.Context(), c, &out)
	require.NoError(t, err, "%s", &out)
	return out.String()
}
