package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if serveAsChild() {
		return
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")) // sarama's, for the life of the program
}

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), config{broker: ownDatabase, events: 8}, &out), "%s", &out)
	requireRounds(t, out.String())
}

// The service's process is another than that of the broker, as ever.
func TestRunOnKafka(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.AllowAutoTopicCreation())
	require.NoError(t, err)
	defer cluster.Close()
	var out bytes.Buffer
	address := "kafka://" + strings.Join(cluster.ListenAddrs(), ",") + "?partitions=1"
	require.NoError(t, run(t.Context(), config{broker: address, events: 8}, &out), "%s", &out)
	requireRounds(t, out.String())
}

func requireRounds(t *testing.T, out string) {
	t.Helper()
	for _, point := range append(crashPoints, "not at all") {
		require.Regexp(t, `(?m)^`+point+` .* ok$`, out)
	}
	require.Contains(t, out, "killed 5 times, and each of 48 events was paid once and has one receipt\n")
	require.NotContains(t, out, "WRONG")
}

func TestRunEndsWhenInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithTimeout(t.Context(), 2*time.Second) // in the middle of a round
	defer interrupt()
	require.ErrorIs(t, run(ctx, config{broker: ownDatabase, events: 10_000}, new(bytes.Buffer)), context.DeadlineExceeded)
}

func TestRunReportsWhatItCannotUse(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]config{
		"unknown scheme":    {broker: "pulsar://localhost", events: 8},
		"does not outlive":  {broker: "gochannel://", events: 8},
		"more than 4":       {broker: ownDatabase},
		"failed to connect": {broker: ownDatabase, events: 8, database: "postgres://127.0.0.1:1/db"},
	} {
		err := run(t.Context(), c, new(bytes.Buffer))
		require.ErrorContains(t, err, text)
		require.Equal(t, 1, strings.Count(err.Error(), text), "told once")
	}
}

func TestOnlyPostgreSQLIsTaken(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"mysql://user:secret@127.0.0.1/db", "mysql://user:secret@127.0.0.1/db?a=b", "postgres:secret", "secret", "host=localhost password=secret",
		"postgres://user:secret%@127.0.0.1/db",
	} {
		_, err := openDatabase(t.Context(), address)
		require.ErrorContains(t, err, "DATABASE_URL is no URL of PostgreSQL", address)
		require.NotContains(t, err.Error(), "secret")
	}
}
