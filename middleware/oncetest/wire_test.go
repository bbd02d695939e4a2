package oncetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// While there is life on the line, nobody passes before all have come.
func TestGateWaitsForAll(t *testing.T) {
	t.Parallel()
	w := &wire{last: time.Now().Add(time.Hour)} // the line is not quiet
	g, end := w.step(3)
	passed := make(chan struct{}, 3)
	arrive := func() { g.wait(); passed <- struct{}{} }
	for range 2 { // it opens as often as they come
		go arrive()
		go arrive()
		requireWaiting(t, g, 2)
		require.Len(t, passed, 0, "nobody passes")
		go arrive()
		for range 3 {
			<-passed
		}
	}
	go arrive()
	go arrive()
	requireWaiting(t, g, 2)
	g.leave() // the third has ended
	<-passed
	<-passed
	go arrive()
	requireWaiting(t, g, 1)
	end()
	<-passed
}

// Who waits for a lock, or for a connection, does not come.
func TestGateDoesNotWaitForTheMissing(t *testing.T) {
	t.Parallel()
	w := &wire{}
	g, end := w.step(3)
	defer end()
	g.wait()
}

func requireWaiting(t *testing.T, g *gate, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.waiting == n
	}, 10*time.Second, time.Millisecond)
}
