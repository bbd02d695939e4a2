package tcpproxy_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
)

// BenchmarkRoundTrip shows what the proxy adds: between direct and proxy, what it costs by itself, and between direct and
// 500us, what is to be half a millisecond.
func BenchmarkRoundTrip(b *testing.B) {
	direct := pgtest.URL(b)
	_, through := pgtest.Proxy(b, direct)
	slow, throughSlow := pgtest.Proxy(b, direct)
	require.NoError(b, slow.Latency(500*time.Microsecond))
	for _, inFlight := range []int{1, 16, 64} {
		for _, way := range []struct{ name, url string }{{"direct", direct}, {"proxy", through}, {"500us", throughSlow}} {
			b.Run(fmt.Sprintf("%s/%d", way.name, inFlight), func(b *testing.B) {
				benchmarkRoundTrip(b, way.url, inFlight)
			})
		}
	}
}

func benchmarkRoundTrip(b *testing.B, url string, inFlight int) {
	rounds := make(chan struct{}, inFlight)
	var running sync.WaitGroup
	var mu sync.Mutex
	var sum time.Duration
	for range inFlight {
		conn := connect(b, url)
		require.NoError(b, conn.Ping(b.Context()))
		running.Go(func() {
			for range rounds {
				start := time.Now()
				err := conn.Ping(b.Context())
				took := time.Since(start)
				mu.Lock()
				sum += took
				mu.Unlock()
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		rounds <- struct{}{}
	}
	close(rounds)
	running.Wait()
	b.ReportMetric(float64(sum.Microseconds())/float64(b.N), "us/trip")
}
