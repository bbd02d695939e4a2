// Command bench measures the module against what a user would write by hand. In one run the ways take turns, slice by slice, on the
// same server and the same kinds of messages; what is printed are medians of the ratios of neighbouring slices, so that a machine whose
// speed drifts, or that others use too, still gives figures that compare.
//
//	make bench
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"time"
)

// settings are common to all benchmarks.
type settings struct {
	rounds      int
	slice       time.Duration
	drainRounds int
	stall       time.Duration
	sweepRows   int
	sweepBatch  int
	sweepPause  time.Duration
}

func main() {
	var s settings
	flag.IntVar(&s.rounds, "rounds", 9, "turns that each way gets in each cell")
	flag.DurationVar(&s.slice, "slice", 300*time.Millisecond, "length of a turn")
	flag.IntVar(&s.drainRounds, "drain-rounds", 3, "times that each outbox is emptied in each cell")
	flag.DurationVar(&s.stall, "stall", time.Minute, "length of each load with a transaction held open")
	flag.IntVar(&s.sweepRows, "sweep-rows", 20_000_000, "claims in the table that is swept, half of them old (1,000,000 take 0.2 GB)")
	flag.IntVar(&s.sweepBatch, "sweep-batch", 0, "rows that the sweeper deletes in a transaction; 0: its default")
	flag.DurationVar(&s.sweepPause, "sweep-pause", 0, "the sweeper's pause between them; 0: its default")
	only := flag.String("run", ".", "regular expression: the benchmarks to run")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, s, *only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings, only string) error {
	selected, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	for _, benchmark := range []struct {
		name string
		run  func(context.Context, settings) error
	}{
		{"transactional", transactional},
		{"deduplicator", deduplicator},
		{"inserts", inserts},
		{"drains", drains},
		{"latency", latency},
		{"stalls", stalls},
		{"sweep", sweep},
	} {
		if selected.MatchString(benchmark.name) {
			if err := benchmark.run(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", benchmark.name, err)
			}
		}
	}
	return nil
}
