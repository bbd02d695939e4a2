package outbox_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

// childVariable makes this test program a relay on the database that it names.
const childVariable = "OUTBOX_TEST_RELAY"

func TestMain(m *testing.M) {
	if url := os.Getenv(childVariable); url != "" {
		fmt.Fprintln(os.Stderr, relayToStdout(url))
		os.Exit(1)
	}
	pgtest.Main(m)
}

// relayToStdout sends to a broker that is the standard output: what has been written there survives kill -9.
func relayToStdout(url string) error {
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(pool, stdout{}, outbox.RelayConfig{BatchSize: crashBatch, PollInterval: time.Millisecond}, nil)
	if err != nil {
		return err
	}
	return relay.Run(context.Background())
}

const crashBatch = 10

type stdout struct{}

func (stdout) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		if _, err := fmt.Println(msg.Metadata[outbox.PartitionKeyKey], string(msg.Payload)); err != nil {
			return err
		}
	}
	return nil
}

func (stdout) Close() error { return nil }

// killedRelay runs a relay as a child process and kills it after it has sent some messages. It gives what it sent.
func killedRelay(t *testing.T, url string, after int) []string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+url)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	watchdog := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()

	var lines []string
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		lines = append(lines, scanner.Text())
		if len(lines) == after {
			require.NoError(t, cmd.Process.Kill())
		}
	}
	require.GreaterOrEqual(t, len(lines), after, "the relay sent too little, or ended by itself")
	require.Error(t, cmd.Wait())
	return lines
}

func TestNothingIsLostWhenTheRelayIsKilled(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const count, keys = 300, 7
	url := newDatabase(t)
	pool := pgtest.PoolOn(t, url)
	publish(t, pool, numbered(count, keys)...)

	var lines []string
	kills := 0
	for ; len(lines) < count/2; kills++ {
		lines = append(lines, killedRelay(t, url, 1+random.IntN(3*crashBatch))...)
	}
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{})
	drained(t, pool)
	for _, s := range b.all() {
		lines = append(lines, s.key()+" "+s.Payload)
	}

	// Every message is there; the first copies of each key are in order; little was sent twice.
	seen, next := map[string]bool{}, map[string]int{}
	for _, line := range lines {
		if seen[line] {
			continue
		}
		seen[line] = true
		key, payload, _ := strings.Cut(line, " ")
		number, err := strconv.Atoi(payload)
		require.NoError(t, err)
		first, err := strconv.Atoi(strings.TrimPrefix(key, "key-"))
		require.NoError(t, err)
		require.Equal(t, first+keys*next[key], number, "key %s", key)
		next[key]++
	}
	require.Len(t, seen, count)
	require.LessOrEqual(t, len(lines)-count, kills*crashBatch, "more than a batch was sent again")
}
