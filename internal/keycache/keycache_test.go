package keycache

import (
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCache(t *testing.T) {
	t.Parallel()
	c := New(2, time.Hour)
	require.False(t, c.Has("orders", "e1"))
	c.Add("orders", "e1")
	require.True(t, c.Has("orders", "e1"))
	require.False(t, c.Has("ledger", "e1"), "the scope is the consumer")
	require.False(t, c.Has("orderse", "1"), "the two names do not run into each other")

	c.Add("orders", "e2")
	c.Add("orders", "e1") // known already: takes no room
	require.True(t, c.Has("orders", "e2"))
	c.Add("orders", "e3")
	require.False(t, c.Has("orders", "e1"), "the oldest goes")
	require.True(t, c.Has("orders", "e2"))
	require.True(t, c.Has("orders", "e3"))
}

func TestNilCache(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, -1} {
		c := New(size, time.Hour)
		require.Nil(t, c)
		c.Add("orders", "e1")
		require.False(t, c.Has("orders", "e1"))
	}
}

func TestEntriesLiveNoLongerThanTheirTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(10, 0)
		c.Add("orders", "e1")
		time.Sleep(DefaultTTL - 1) // the bubble's clock: takes no time
		require.True(t, c.Has("orders", "e1"))
		time.Sleep(time.Nanosecond)
		require.False(t, c.Has("orders", "e1"), "looking at it has not kept it alive")
		c.Add("orders", "e1")
		require.True(t, c.Has("orders", "e1"), "the database has confirmed it anew")
	})
}

// TestModel holds the cache against a list: the last size distinct ids, by when they were first added.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 5).Draw(t, "size")
		c := New(size, time.Hour)
		var model []string
		for _, n := range rapid.SliceOf(rapid.IntRange(0, 8)).Draw(t, "ids") {
			id := strconv.Itoa(n)
			known := false
			for _, m := range model {
				known = known || m == id
			}
			c.Add("orders", id)
			if !known {
				model = append(model, id)
			}
			if len(model) > size {
				model = model[1:]
			}
			held := 0
			for i := range 9 {
				if c.Has("orders", strconv.Itoa(i)) {
					held++
				}
			}
			require.Equal(t, len(model), held)
			for _, m := range model {
				require.True(t, c.Has("orders", m))
			}
			require.LessOrEqual(t, len(c.slots), size)
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	c := New(64, time.Hour)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 1000 {
				id := strconv.Itoa(i % (100 + g))
				c.Add("orders", id)
				c.Has("orders", id)
			}
		})
	}
	wg.Wait()
	require.Len(t, c.slots, 64)
	require.Len(t, c.entries, 64)
}

func BenchmarkCache(b *testing.B) {
	ids := make([]string, 1<<14)
	for i := range ids {
		ids[i] = "0b1f3f6e-8a57-4c62-9d4a-" + strconv.Itoa(i)
	}
	for name, use := range map[string]func(c *Cache, id string){
		"Has": func(c *Cache, id string) { c.Has("orders", id) },
		"Add": func(c *Cache, id string) { c.Add("orders", id) },
	} {
		b.Run(name, func(b *testing.B) {
			c := New(1<<13, time.Hour)
			for _, id := range ids {
				c.Add("orders", id)
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					use(c, ids[i%len(ids)])
				}
			})
		})
	}
}
