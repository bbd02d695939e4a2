package main

import (
	"context"
	"fmt"
	"time"
)

// drains measures how fast a full outbox is emptied: by the relay, and by Watermill's forwarder.
func drains(ctx context.Context, s settings) error {
	o, err := openOutboxes(ctx)
	if err != nil {
		return err
	}
	defer o.close()

	for _, c := range []struct {
		rows, stockRows int // the stock side is measured on its first messages only where it is slow
		takes           time.Duration
		stock           drain
	}{
		{10_000, 500, 5 * time.Millisecond, o.stockBest()},
		{10_000, 10_000, 0, o.stockBest()},
		{100_000, 5_000, 0, o.stockDefault()},
		{100_000, 20_000, 0, o.stockBest()},
	} {
		ours, stock, err := alternate(s.drainRounds,
			func() (float64, error) { return o.rate(ctx, o.relay(), c.rows, c.rows, c.takes) },
			func() (float64, error) { return o.rate(ctx, c.stock, c.rows, c.stockRows, c.takes) },
		)
		if err != nil {
			return err
		}
		fmt.Printf("drain %7d rows, broker takes %3v a call: relay %6.0f/s, %s %6.0f/s: %.1fx\n",
			c.rows, c.takes, median(ours), c.stock.name, median(stock), medianRatio(ours, stock))
	}

	for _, c := range []struct {
		name string
		hold string // run in a transaction that stays open meanwhile
	}{
		{"", ""},
		{", a read-only snapshot held", "begin isolation level repeatable read read only; select count(*) from pg_class"},
	} {
		long, short, err := alternate(s.drainRounds,
			func() (float64, error) {
				if c.hold == "" {
					return o.rate(ctx, o.relay(), 1_000_000, 1_000_000, 0)
				}
				return o.holding(ctx, c.hold, func() (float64, error) { return o.rate(ctx, o.relay(), 1_000_000, 1_000_000, 0) })
			},
			func() (float64, error) { return o.rate(ctx, o.relay(), 10_000, 10_000, 0) },
		)
		if err != nil {
			return err
		}
		fmt.Printf("drain 1000000 rows%s: relay %6.0f/s, of 10000 %6.0f/s: %.2f\n", c.name, median(long), median(short), medianRatio(long, short))
	}
	return nil
}

// holding measures while a transaction is left open. It begins after truncate and fill would have to wait for it: so it
// takes its snapshot on another table's account.
func (o *outboxes) holding(ctx context.Context, statements string, measure func() (float64, error)) (float64, error) {
	conn, err := o.pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, statements); err != nil {
		return 0, err
	}
	defer conn.Exec(ctx, "rollback")
	return measure()
}

func alternate(rounds int, a, b func() (float64, error)) (as, bs []float64, err error) {
	for range rounds {
		x, err := a()
		if err != nil {
			return nil, nil, err
		}
		y, err := b()
		if err != nil {
			return nil, nil, err
		}
		as, bs = append(as, x), append(bs, y)
	}
	return as, bs, nil
}

func medianRatio(a, b []float64) float64 {
	return ratio(figures{rates: a}, figures{rates: b})
}
