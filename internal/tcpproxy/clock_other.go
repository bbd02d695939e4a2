//go:build !linux

package tcpproxy

import "time"

// clock is as exact as Go's own timers.
type clock struct{}

func newClock() *clock { return &clock{} }

func (*clock) sleep(d time.Duration) { time.Sleep(d) }

func (*clock) close() {}
