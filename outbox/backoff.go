package outbox

import (
	"math/rand/v2"
	"time"
)

// longestBackoff is how long anything that fails is left alone, at most.
const longestBackoff = 30 * time.Second

// backoff doubles the wait with each failure in a row.
type backoff struct {
	first time.Duration
	delay time.Duration
}

// next gives the wait after one more failure: up to a quarter less than the full one, so that those who failed together
// do not come back together.
func (b *backoff) next() time.Duration {
	b.delay = min(max(b.first, 2*b.delay), longestBackoff)
	return b.delay - rand.N(b.delay/4+1)
}

func (b *backoff) reset() { b.delay = 0 }
