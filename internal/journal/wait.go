package journal

import (
	"context"
	"math/rand/v2"
	"time"
)

// wait is how a caller waits for the outcome of another: it looks again, soon at first.
type wait struct {
	until time.Time
	next  time.Duration
}

const (
	firstLook = 4 * time.Millisecond
	lastLook  = 100 * time.Millisecond
)

func newWait(d time.Duration) wait { return wait{time.Now().Add(d), firstLook} }

// pause waits until the next look. False: the time is over.
func (w *wait) pause(ctx context.Context) (bool, error) {
	left := time.Until(w.until)
	if left <= 0 {
		return false, nil
	}
	d := w.next/2 + rand.N(w.next/2)
	w.next = min(w.next*3/2, lastLook)
	if !sleep(ctx, min(d, left)) {
		return false, ctx.Err()
	}
	return true, nil
}

// sleep tells whether it slept to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
