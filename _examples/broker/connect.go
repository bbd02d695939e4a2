package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// reach finds out whether any of the hosts takes connections. Most clients repeat and wait before they say so, some for minutes,
// and some say it unclearly.
func reach(ctx context.Context, hosts ...string) error {
	var faults []error
	for _, host := range hosts {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
		if err == nil {
			return conn.Close()
		}
		faults = append(faults, err)
	}
	return fmt.Errorf("no connection: %w", errors.Join(faults...))
}

// left is how long the context lasts, 5 seconds at most: what clients that know no contexts are told of it.
func left(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(min(time.Until(deadline), connectStep), time.Millisecond)
	}
	return connectStep
}

const connectStep = 5 * time.Second

// within waits for open no longer than the context lasts, for clients that know no contexts. What they still open then is closed.
func within[T any](ctx context.Context, open func() (T, error), closing func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	results := make(chan result, 1)
	go func() {
		value, err := open()
		results <- result{value, err}
	}()
	select {
	case r := <-results:
		return r.value, r.err
	case <-ctx.Done():
		go func() {
			if r := <-results; r.err == nil {
				closing(r.value)
			}
		}()
		var none T
		return none, context.Cause(ctx)
	}
}
