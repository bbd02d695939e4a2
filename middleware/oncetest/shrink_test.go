package oncetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever part of a sequence shows a fault, what is left shows it, and shows it no more without any one of its elements.
func TestShrinkLeavesNothingThatCanGo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "n")
		needed := rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 1, 3, rapid.ID).Draw(t, "needed")
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		try := func(part []int) *finding {
			for _, i := range needed {
				if !slices.Contains(part, i) {
					return &finding{kind: "another"}
				}
			}
			return &finding{kind: "fault", at: len(part)}
		}
		part, f := shrink(all, try(all), try)
		slices.Sort(needed)
		require.Equal(t, slices.Compact(needed), part)
		require.Equal(t, len(part), f.at, "the finding is that of the part")
	})
}

func TestShrinkHasABound(t *testing.T) {
	t.Parallel()
	runs := 0
	all := make([]int, 10*maxShrinks)
	part, _ := shrink(all, &finding{}, func([]int) *finding { runs++; return nil })
	require.Equal(t, all, part)
	require.Equal(t, maxShrinks, runs)
}

func TestPermutations(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	for n, want := range map[int]int{0: 0, 1: 0, 2: 1, 3: 5, 4: 23, 5: 119, 6: 120} {
		all := permutations(n, 120, random)
		if n == maxExhaustive+1 {
			require.InDelta(t, want, len(all), 30, "a sample, whose repeats are left out")
		} else {
			require.Len(t, all, want)
		}
		seen := map[string]bool{}
		for _, p := range all {
			require.False(t, slices.IsSorted(p), "%v is the right order", p)
			require.False(t, seen[fmt.Sprint(p)], "%v is there twice", p)
			seen[fmt.Sprint(p)] = true
			sorted := slices.Sorted(slices.Values(p))
			for i, v := range sorted {
				require.Equal(t, i, v)
			}
		}
	}
	require.Equal(t, [][]int{{3, 2, 1, 0}}, permutations(4, 1, random), "of a few, the reverse order is one")
	require.Len(t, permutations(5, 10, random), 10)
	require.Len(t, permutations(9, 10, random), 10)
}

// Several entities are permuted at once, each in its own places.
func TestOrdersKeepEntitiesInTheirPlaces(t *testing.T) {
	t.Parallel()
	h := history{right: []int{0, 1, 2, 3, 4}, entities: []string{"a", "b"}, places: map[string][]int{"a": {0, 2, 4}, "b": {1, 3}}}
	orders := h.orders(120, rand.New(rand.NewPCG(1, 1)))
	require.Len(t, orders, 5)
	for _, order := range orders {
		require.Equal(t, []int{3, 1}, []int{order[1], order[3]})
		require.ElementsMatch(t, []int{0, 2, 4}, []int{order[0], order[2], order[4]})
		require.NotEqual(t, []int{0, 2, 4}, []int{order[0], order[2], order[4]})
	}
}
