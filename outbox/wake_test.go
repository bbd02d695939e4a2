package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWakeSignalsCoalesce(t *testing.T) {
	t.Parallel()
	var w wake
	w.signal() // nobody listens
	first, second := newBell(), newBell()
	stopFirst := w.add(first)
	defer w.add(second)()
	require.Empty(t, first.rung)
	w.signal()
	w.signal()
	require.Len(t, first.rung, 1)
	require.Len(t, second.rung, 1)
	<-first.rung
	stopFirst()
	w.signal()
	require.Empty(t, first.rung)
	require.Len(t, second.rung, 1)
}

func TestBackoffIsBounded(t *testing.T) {
	t.Parallel()
	b := backoff{first: 100 * time.Millisecond}
	require.LessOrEqual(t, b.next(), 100*time.Millisecond)
	for range 100 {
		require.LessOrEqual(t, b.next(), longestBackoff)
	}
	require.GreaterOrEqual(t, b.next(), longestBackoff*3/4)
	b.reset()
	require.LessOrEqual(t, b.next(), 100*time.Millisecond)
}
