// Command chaos runs a system built with this module, breaks whatever can be broken in it, and then looks for the invariants:
//
//   - effects = distinct events
//   - no entity goes backwards
//   - every committed message leaves the outbox at least once, in key order
//   - nothing leaves that was not committed
//   - what was confirmed as committed stays; the poison queue holds bad events, and nothing else
//
// The system, each box several processes, all of them over one PostgreSQL:
//
//	producers -> outbox -> relays -> Kafka: events -> totals, state -> outbox -> relays -> Kafka: out -> downstream
//
// A seed gives a plan of faults, always the same; what the faults then meet is chance. Processes note what they do in ledgers that no
// fault can touch. The verdict rests on tables, topics and these ledgers. A violation is printed with all that is known about its
// event, and the exit status is 1.
//
//	make chaos
//	go -C internal/pathtest run ./chaos -for 90s -seed 7
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

type settings struct {
	seed     uint64
	length   time.Duration
	events   int
	broker   string // host:port; "": one of the rig's own
	sabotage sabotage
	plan     []fault       // nil: drawn from the seed
	dir      string        // for ledgers and logs; "": one that goes where nothing is broken
	patience time.Duration // for all to come to rest after the faults
}

// rate is how many events are made in a second.
func (s settings) rate() int { return max(2, int(float64(s.events)/s.length.Seconds())) }

var errViolated = errors.New("an invariant is broken")

func main() {
	if len(os.Args) == 3 && os.Args[1] == childArgument {
		fmt.Fprintln(os.Stderr, runChild(os.Args[2]))
		os.Exit(1)
	}
	var s settings
	flag.Uint64Var(&s.seed, "seed", uint64(time.Now().UnixNano()), "of the plan of faults")
	flag.DurationVar(&s.length, "for", 90*time.Second, "how long faults happen; what is left is worked off after that")
	flag.IntVar(&s.events, "events", 6000, "how many are made, evenly over that time")
	flag.DurationVar(&s.patience, "patience", 5*time.Minute, "how long it may take after that")
	address := flag.String("broker", "", "kafka://host:port of a Kafka that runs already, and is not killed")
	flag.Func("sabotage", "plants a fault in the system, to see it caught: "+strings.Join(sabotageNames(), ", "), func(name string) error {
		s.sabotage = sabotage(name)
		if _, ok := sabotages[s.sabotage]; !ok {
			return errors.New("there is none of that name")
		}
		return nil
	})
	flag.Parse()
	s.broker = strings.TrimPrefix(*address, "kafka://")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if _, err := run(ctx, s, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run is one run: it prints the report, and gives what was broken. The ledgers stay where something was.
func run(ctx context.Context, s settings, out io.Writer) (_ []violation, err error) {
	fmt.Fprintf(out, "seed %d\n", s.seed)
	w, err := startWorld(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, w.close())
		switch {
		case err != nil:
			fmt.Fprintf(out, "ledgers and logs are in %s\n", w.dir)
		case s.dir == "":
			err = os.RemoveAll(w.dir)
		}
	}()
	if err := w.warmUp(ctx); err != nil {
		return nil, err
	}
	plan := s.plan
	if plan == nil {
		plan = makePlan(s.seed, s.length, aims())
	}
	began := time.Now()
	if err := w.execute(ctx, plan); err != nil {
		return nil, err
	}
	faultsEnded := time.Now()
	stuck, err := w.settle(ctx, s.patience)
	if err != nil {
		return nil, err
	}
	settled := time.Now()
	if err := w.stopProcesses(); err != nil {
		return nil, err
	}
	told, err := readNotes(w.ledgers())
	if err != nil {
		return nil, err
	}
	e, err := w.collect(ctx, told.told, stuck)
	if err != nil {
		return nil, err
	}
	violations := check(e, consumers)
	w.report(out, e, told, violations, faultsEnded.Sub(began), settled.Sub(faultsEnded))
	if len(violations) == 0 {
		return nil, nil
	}
	return violations, errors.Join(errViolated, w.explain(out, e, violations))
}
