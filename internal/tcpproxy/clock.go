package tcpproxy

import "time"

// exact is what is left of a wait to the exact timer: it cannot be interrupted.
const exact = 2 * time.Millisecond

// wait returns at due, or with false when over is closed before.
func (c *clock) wait(due time.Time, over <-chan struct{}) bool {
	if left := time.Until(due); left > exact {
		timer := time.NewTimer(left - exact)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-over:
			return false
		}
	}
	if left := time.Until(due); left > 0 {
		c.sleep(left)
	}
	return true
}
