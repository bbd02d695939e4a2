package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

// The workers that a run starts are processes of this test's program; so is a parent that is to be killed.
func TestMain(m *testing.M) {
	if isWorker() {
		workerMain()
	}
	if os.Getenv("PAYMENTS_PARENT") != "" {
		_ = run(context.Background(), config{broker: ownDatabase, orders: 1000, seed: 1, verbose: true}, io.Discard)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")) // sarama's, for the life of the program
}

// On a server that is there already a run leaves nothing of itself.
func TestRun(t *testing.T) {
	t.Parallel()
	address := startServer(t)
	before := tablesOn(t, address)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), config{database: address, broker: ownDatabase, orders: 20, kills: 3, seed: 2}, &out), "%s", &out)
	require.Contains(t, out.String(), "an operator has looked up")
	require.True(t, strings.HasSuffix(out.String(), "no order was charged twice\n"))
	require.Equal(t, before, tablesOn(t, address))
}

func TestKafka(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DefaultNumPartitions(4), kfake.AllowAutoTopicCreation())
	require.NoError(t, err)
	defer cluster.Close()
	c := config{database: startServer(t), broker: "kafka://" + cluster.ListenAddrs()[0] + "?replication=1", orders: 20, kills: 1, seed: 2}
	require.NoError(t, c.validate())
	require.NoError(t, c.prove(t.Context(), passes[1], io.Discard))
}

// A policy that does not fit the provider charges twice, and the run sees it.
func TestRepeatNeedsKeys(t *testing.T) {
	t.Parallel()
	c := config{database: startServer(t), broker: ownDatabase, orders: 10, seed: 2}
	wrong := pass{title: "no keys, and Repeat", keys: false, onUnknown: dedupe.Repeat}
	require.ErrorContains(t, c.prove(t.Context(), wrong, io.Discard), "charged twice")
}

func TestRunEndsWhenInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	c := config{database: startServer(t), broker: ownDatabase, orders: 500, seed: 1}
	out := writer(func(p []byte) (int, error) {
		time.AfterFunc(time.Second, interrupt) // it is in the middle of something, whatever that is
		return len(p), nil
	})
	require.ErrorIs(t, c.prove(ctx, passes[0], out), context.Canceled)
}

// The workers hold their parent's standard error open, until they end.
func TestWorkersDieWithTheirParent(t *testing.T) {
	t.Parallel()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "PAYMENTS_PARENT=1", "DATABASE_URL=")
	log, err := parent.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	late := time.AfterFunc(time.Minute, func() { _ = log.Close() })
	defer late.Stop()
	lines := bufio.NewScanner(log)
	for lines.Scan() && !strings.Contains(lines.Text(), "Starting handler") {
	}
	require.NoError(t, parent.Process.Kill())
	for lines.Scan() {
	}
	require.NoError(t, lines.Err(), "the end of the file, not of the patience")
	require.ErrorContains(t, parent.Wait(), "killed")
}

func TestRunReportsWhatItCannotUse(t *testing.T) {
	t.Parallel()
	for fault, c := range map[string]config{
		"at least one":      {broker: ownDatabase},
		"from none to one":  {broker: ownDatabase, orders: 1, kills: 2},
		"in this program's": {broker: "kafka://embedded?partitions=2", orders: 1},
		"unknown scheme":    {broker: "pulsar://host", orders: 1},
		"failed to connect": {broker: ownDatabase, orders: 1, database: "postgres://127.0.0.1:1/db"},
	} {
		require.ErrorContains(t, run(t.Context(), c, io.Discard), fault)
	}
}

func TestOnlyPostgreSQLIsTaken(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"mysql://user:secret@127.0.0.1/db", "mysql://user:secret@127.0.0.1/db?a=b", "postgres:secret", "secret", "host=localhost password=secret",
		"postgres://user:secret%@127.0.0.1/db",
	} {
		_, err := createSchema(t.Context(), address)
		require.ErrorContains(t, err, "DATABASE_URL is no URL of PostgreSQL", address)
		require.NotContains(t, err.Error(), "secret")
	}
}

func startServer(t *testing.T) string {
	t.Helper()
	server, err := pgserver.Start(t.Context(), pgserver.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server.URL("postgres")
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
