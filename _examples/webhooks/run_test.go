package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-once/watermill-once/middleware/oncetest"
	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(oncetest.Main(m),
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")) // sarama's, for the life of the program
}

func TestRun(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"postgres://", "gochannel://", "kafka://embedded"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, prove(t, config{broker: broker, events: 300}), "all 12 invariants hold")
		})
	}
}

// On a server that is there already, which also is the broker, a run leaves nothing of itself.
func TestRunOnAServerThatStays(t *testing.T) {
	t.Parallel()
	server, err := pgserver.Start(t.Context(), pgserver.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	address := server.URL("postgres")
	before := tablesOn(t, address)
	for range 2 {
		require.Contains(t, prove(t, config{database: address, broker: address, events: 100}), "all 12 invariants hold")
	}
	require.Equal(t, before, tablesOn(t, address))
}

func TestRunOfRecordedDeliveries(t *testing.T) {
	t.Parallel()
	path := os.Getenv("WEBHOOKS_INPUT")
	if path == "" {
		path = filepath.Join("..", "..", "..", "shared", "data", "github-deliveries.jsonl")
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			t.Skip("WEBHOOKS_INPUT names no file of recorded deliveries")
		}
	}
	out := prove(t, config{broker: "postgres://", input: path})
	require.Contains(t, out, "all 12 invariants hold")
}

func TestRunEndsWhenInterrupted(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"postgres://", "gochannel://", "kafka://embedded"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			// The first line that it writes is one of progress: it is in the middle of its work.
			out := writer(func(p []byte) (int, error) {
				interrupt()
				return len(p), nil
			})
			err := run(ctx, config{broker: broker, events: 10_000, logger: watermill.NopLogger{}}, out)
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}

func TestRunReportsWhatItCannotUse(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing.jsonl")
	for name, c := range map[string]config{
		"unknown scheme":    {broker: "pulsar://localhost"},
		"not a URL":         {broker: "1:2"},
		"no host":           {broker: "kafka://"},
		"missing.jsonl":     {broker: "gochannel://", input: missing},
		"no deliveries":     {broker: "gochannel://", input: os.DevNull},
		"at least one":      {broker: "gochannel://", events: -5},
		"-pace 0s":          {broker: "gochannel://", serve: "127.0.0.1:0"},
		"failed to connect": {broker: "gochannel://", events: 1, database: "postgres://127.0.0.1:1/db"},
		"DATABASE_URL: ":    {broker: "gochannel://", events: 1, database: "nonsense"},
		"DATABASE_URL is":   {broker: "gochannel://", events: 1, database: "mysql://user:secret@127.0.0.1/db?a=b"},
	} {
		c.logger = watermill.NopLogger{}
		err := run(t.Context(), c, new(bytes.Buffer))
		require.ErrorContains(t, err, name)
		require.LessOrEqual(t, strings.Count(err.Error(), "failed to connect"), 1, "told once")
		require.NotContains(t, err.Error(), "secret")
	}
}

// prove runs and gives what it has printed.
func prove(t *testing.T, c config) string {
	t.Helper()
	c.seed, c.logger = 1, watermill.NopLogger{}
	var out bytes.Buffer
	err := run(t.Context(), c, &out)
	require.NoError(t, err, "%s", &out)
	return out.String()
}

func tablesOn(t *testing.T, address string) (names []string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	rows, err := conn.Query(t.Context(), "select schemaname || '.' || tablename from pg_tables order by 1")
	require.NoError(t, err)
	names, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return names
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
