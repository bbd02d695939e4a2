package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

// Far from PostgreSQL, a backlog is drained in few round trips, in order, and the relays keep their shards: none is given
// back or lost, or messages would be sent again.
func TestABacklogIsDrainedOverALongDistance(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	direct := pgtest.PoolOn(t, address)
	proxy, through := pgtest.Proxy(t, address)
	require.NoError(t, proxy.Latency(50*time.Millisecond))
	far := pgtest.PoolOn(t, through)
	b := newBroker()
	startRelay(t, far, b, outbox.RelayConfig{})
	startRelay(t, far, b, outbox.RelayConfig{})
	eventually(t, "each has a half", func() bool { return fmt.Sprint(shares(t, direct)) == "[8 8]" })

	const count, keys = 6000, 60
	proxy.Reset()
	began := time.Now()
	publish(t, direct, numbered(count, keys)...)
	b.wait(t, count)
	trips, took := proxy.RoundTrips(), time.Since(began)
	drained(t, direct)
	require.Equal(t, "[8 8]", fmt.Sprint(shares(t, direct)))
	require.Len(t, b.all(), count)
	next := make(map[string]int)
	for _, s := range b.all() {
		var key int
		_, err := fmt.Sscanf(s.key(), "key-%d", &key)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(key+keys*next[s.key()]), s.Payload)
		next[s.key()]++
	}
	// Two relays, each with half of the rows: ten pages or so that grow, and what they would also say while they are idle.
	idle := 2 * 5 * int(took/time.Second+1)
	require.LessOrEqual(t, trips, 2*25+idle)
}
