package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPlan(t *testing.T) {
	t.Parallel()
	plan := makePlan(7, time.Minute, aims())
	require.Equal(t, plan, makePlan(7, time.Minute, aims()), "the same seed")
	require.NotEqual(t, plan, makePlan(8, time.Minute, aims()))

	seen := map[kind]bool{}
	for i, f := range plan {
		seen[f.Kind] = true
		require.GreaterOrEqual(t, f.At, time.Duration(0))
		require.Less(t, f.At, time.Minute)
		require.GreaterOrEqual(t, f.N, 1)
		if i > 0 {
			require.GreaterOrEqual(t, f.At, plan[i-1].At)
		}
	}
	for _, f := range frequencies(aims()) {
		require.True(t, seen[f.kind], f.kind)
		for _, planned := range plan {
			if planned.Kind == f.kind {
				require.Contains(t, f.targets, planned.Target)
				require.GreaterOrEqual(t, planned.For, f.shortest)
				require.LessOrEqual(t, planned.For, f.longest)
			}
		}
	}
	for _, f := range makePlan(7, time.Millisecond, aims()) {
		delete(seen, f.Kind)
	}
	require.Empty(t, seen, "each kind at least once, however short the run")
}

// What the long form promises.
func TestLongPlan(t *testing.T) {
	t.Parallel()
	count := map[kind]int{}
	for _, f := range makePlan(7, 15*time.Minute, aims()) {
		count[f.Kind]++
	}
	require.GreaterOrEqual(t, count[kill], 200)
	require.GreaterOrEqual(t, count[crashDatabase], 20)
}
