// Command bench measures how fast a full outbox gets to Kafka: by the relay through outbox/kafkasink, and by Watermill's own
// forwarder, from watermill-sql's default schema at its best settings through watermill-kafka's Publisher as it comes. In one
// run they take turns, with the same messages, on the same server and the same embedded Kafka; what is printed are medians,
// of the ratios those of neighbouring turns.
//
//	make bench
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"text/tabwriter"
	"time"
)

func main() {
	rounds := flag.Int("rounds", 3, "turns that each way gets")
	messages := flag.Int("messages", 10_000, "what is in the outbox at the beginning of a turn")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	// Embedded, Kafka answers at once. One with replicas takes a millisecond or more.
	for _, answer := range []time.Duration{0, time.Millisecond} {
		if err := run(ctx, answer, *rounds, *messages); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func run(ctx context.Context, answer time.Duration, rounds, messages int) error {
	w, err := newWorld(ctx, answer, messages)
	if err != nil {
		return err
	}
	defer w.close()

	ways := []way{w.forwarder(), w.relay(), w.sinkAlone()}
	rates := make([][]float64, len(ways))
	for round := range rounds + 1 {
		for i := range ways {
			// Every other round backwards, so that none always follows the same neighbour.
			if round%2 == 1 {
				i = len(ways) - 1 - i
			}
			took, err := ways[i].turn(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", ways[i].name, err)
			}
			if round > 0 { // the first does not count
				rates[i] = append(rates[i], float64(messages)/took.Seconds())
			}
		}
	}

	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "%d messages to Kafka, which answers in %v, by\tmessages/s\t: forwarder\t\n", messages, answer)
	for i, way := range ways {
		ratios := make([]float64, len(rates[i]))
		for round := range ratios {
			ratios[round] = rates[i][round] / rates[0][round]
		}
		fmt.Fprintf(table, "%s\t%.0f\t%.1fx\t\n", way.name, median(rates[i]), median(ratios))
	}
	return table.Flush()
}

// way is one of the ways to get the messages to Kafka.
type way struct {
	name string
	turn func(ctx context.Context) (time.Duration, error)
}

func median[T cmp.Ordered](values []T) T {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}
