// Package keycache remembers in the process which events are committed, so that a duplicate that follows soon after
// costs no trip to the database.
package keycache

import (
	"strings"
	"sync"
	"time"
)

// DefaultTTL is how long an entry lives where nothing else is said.
const DefaultTTL = time.Minute

// Cache is a bounded set of (consumer, event id). An entry lives a fixed time, however often it is looked at, so
// that claims deleted from the table are forgotten here too. When the cache is full, the oldest entry goes:
// duplicates come soon or not at all, and in that order age is all that counts. A nil Cache remembers nothing. Safe
// for concurrent use.
type Cache struct {
	size int
	ttl  time.Duration

	mu      sync.Mutex
	entries []entry     // a ring once it has grown to size, next being the oldest
	slots   map[key]int // where in entries
	next    int
}

type key struct{ consumer, id string }

type entry struct {
	key
	added time.Time
}

// New makes a cache of at most size entries; with size 0 it gives nil. It takes memory as it fills.
func New(size int, ttl time.Duration) *Cache {
	if size <= 0 {
		return nil
	}
	if ttl <= 0 {
		ttl = DefaultTTL
	}
	return &Cache{size: size, ttl: ttl, slots: make(map[key]int)}
}

// Has tells whether the event is known to be committed.
func (c *Cache) Has(consumer, id string) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	slot, ok := c.slots[key{consumer, id}]
	return ok && time.Since(c.entries[slot].added) < c.ttl
}

// Add remembers an event that the database has just shown to be committed, for the cache's time from now on.
func (c *Cache) Add(consumer, id string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if slot, ok := c.slots[key{consumer, id}]; ok {
		c.entries[slot].added = now
		return
	}
	// A copy, since the id may be a piece of a payload, which would stay in memory with it.
	e := entry{key{consumer, strings.Clone(id)}, now}
	if len(c.entries) < c.size {
		c.slots[e.key] = len(c.entries)
		c.entries = append(c.entries, e)
		return
	}
	delete(c.slots, c.entries[c.next].key)
	c.entries[c.next] = e
	c.slots[e.key] = c.next
	c.next = (c.next + 1) % c.size
}
