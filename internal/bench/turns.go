package main

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// way is one of the ways to do the same.
type way struct {
	name string
	do   func(ctx context.Context) error // one message; called from several goroutines
}

// figures are what a way reached in one cell.
type figures struct {
	rates  []float64 // messages per second, one for each round
	allocs float64   // per message
	bytes  float64   // per message
}

// takeTurns runs the ways in turn, each for one slice a round, after a round that does not count.
func takeTurns(ctx context.Context, s settings, inFlight int, ways []way) ([]figures, error) {
	result := make([]figures, len(ways))
	for round := range s.rounds + 1 {
		for i := range ways {
			// Every other round backwards, so that none always follows the same neighbour.
			if round%2 == 1 {
				i = len(ways) - 1 - i
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			n, took, err := slice(ctx, s.slice, inFlight, ways[i].do)
			if err != nil {
				return nil, err
			}
			runtime.ReadMemStats(&after)
			if round == 0 {
				continue
			}
			f := &result[i]
			f.rates = append(f.rates, float64(n)/took.Seconds())
			f.allocs += float64(after.Mallocs-before.Mallocs) / float64(n) / float64(s.rounds)
			f.bytes += float64(after.TotalAlloc-before.TotalAlloc) / float64(n) / float64(s.rounds)
		}
	}
	return result, nil
}

// slice keeps inFlight calls of do going for about d.
func slice(ctx context.Context, d time.Duration, inFlight int, do func(context.Context) error) (n int64, took time.Duration, err error) {
	var (
		wg    sync.WaitGroup
		done  atomic.Int64
		errs  = make(chan error, inFlight)
		start = time.Now()
	)
	for range inFlight {
		wg.Go(func() {
			for time.Since(start) < d {
				if err := errors.Join(ctx.Err(), do(ctx)); err != nil {
					errs <- err
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	took = time.Since(start)
	close(errs)
	return done.Load(), took, <-errs
}

// ratio is the median of a's rates over b's, round by round.
func ratio(a, b figures) float64 {
	ratios := make([]float64, len(a.rates))
	for i := range ratios {
		ratios[i] = a.rates[i] / b.rates[i]
	}
	return median(ratios)
}

func median[T cmp.Ordered](values []T) T {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}
