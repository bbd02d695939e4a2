package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	once "github.com/watermill-once/watermill-once/middleware"
)

// report prints what both services hold beside what the events say. It returns an error where they differ.
func report(ctx context.Context, db *databases, f *feed, t *tally, late *repeater, out io.Writer) error {
	held, err := states(ctx, db.orders, "select id, status, total from orders")
	if err != nil {
		return err
	}
	billed, err := states(ctx, db.billing, "select order_id, status, amount from bills")
	if err != nil {
		return err
	}

	messages, copies := late.numbers()
	fmt.Fprintf(out, "%d deliveries of %d events, %d of them after a newer one of their order\n",
		len(f.deliveries), len(f.events), f.overtaken)
	fmt.Fprintf(out, "%d changes told to billing, and %d of them once more, late\n\n", messages-copies, copies)

	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(cells ...any) {
		for _, cell := range cells {
			fmt.Fprint(table, cell, "\t")
		}
		fmt.Fprintln(table)
	}
	row("service", "fresh", "duplicate", "stale")
	for _, service := range []string{"orders", "billing"} {
		row(service, t.number(service, once.Fresh), t.number(service, once.Duplicate), t.number(service, once.Stale))
	}
	fmt.Fprintln(table)
	row("order", "the events say", "orders holds", "billing holds", "")
	expected := f.expected()
	wrong := 0
	for _, order := range slices.Sorted(maps.Keys(expected)) {
		mark := "ok"
		if held[order] != expected[order] || billed[order] != expected[order] {
			wrong++
			mark = "WRONG"
		}
		row(order, expected[order], held[order], billed[order], mark)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if extra := len(held) + len(billed) - 2*len(expected); extra > 0 || wrong > 0 {
		return fmt.Errorf("%d of %d orders are wrong, and %d are there that no event names", wrong, len(expected), max(extra, 0))
	}
	_, err = fmt.Fprintf(out, "\nboth services hold what the events say of %d orders\n", len(expected))
	return err
}

func states(ctx context.Context, pool *pgxpool.Pool, query string) (map[string]state, error) {
	rows, err := pool.Query(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	found := map[string]state{}
	var (
		order string
		s     state
	)
	_, err = pgx.ForEachRow(rows, []any{&order, &s.status, &s.total}, func() error {
		found[order] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return found, nil
}

func (s state) String() string {
	return fmt.Sprintf("%s %d.%02d", s.status, s.total/100, s.total%100)
}
