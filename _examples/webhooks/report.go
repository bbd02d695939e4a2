package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	once "github.com/watermill-once/watermill-once/middleware"
)

// report prints what happened, and returns an error if an invariant is broken.
func (s *service) report(ctx context.Context, p *provider, expected outcome, results []result, out io.Writer) error {
	var cards, entries, emails int
	const query = "select (select count(*) from cards), (select count(*) from ledger_entries), (select count(*) from emails)"
	if err := s.pool.QueryRow(ctx, query).Scan(&cards, &entries, &emails); err != nil {
		return fmt.Errorf("report: %w", err)
	}

	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(cells ...any) {
		for _, cell := range cells {
			fmt.Fprint(table, cell, "\t")
		}
		fmt.Fprintln(table)
	}
	fmt.Fprintf(out, "\n%d deliveries of %d distinct events, the last replays included; %d answers were lost on the way back, %d forgeries were refused\n\n",
		p.accepted.Load(), expected.events, p.lost.Load(), p.refused.Load())
	row("consumer", "applied", "duplicates", "stale", "rolled back", "rows")
	for _, consumer := range []struct {
		name string
		rows int
	}{{"cards", cards}, {"ledger", entries}, {"mails", emails}} {
		number := func(k once.Kind) int { return s.counts.number(consumer.name, k) }
		row(consumer.name, number(once.Fresh), number(once.Duplicate), number(once.Stale), number(once.Failed), consumer.rows)
	}
	if err := table.Flush(); err != nil {
		return err
	}

	fmt.Fprintln(out)
	broken := 0
	for _, r := range results {
		if r.broken != nil {
			broken++
			fmt.Fprintf(out, "BROKEN  %s: %v\n", r.invariant, r.broken)
			continue
		}
		fmt.Fprintf(out, "ok      %s\n", r.invariant)
	}
	if broken > 0 {
		return fmt.Errorf("%d of %d invariants are broken", broken, len(results))
	}
	_, err := fmt.Fprintf(out, "\nall %d invariants hold\n", len(results))
	return err
}
