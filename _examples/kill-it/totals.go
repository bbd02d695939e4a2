package main

import (
	"context"
	"fmt"
	"time"
)

// totals are what has been done, as the tables have it.
type totals struct {
	payments int
	balance  int64
	receipts int
}

func (d *database) totals(ctx context.Context) (t totals, err error) {
	const query = `
select (select count(*) from payments), (select amount from balance), (select count(*) from receipts)`
	if err := d.pool.QueryRow(ctx, query).Scan(&t.payments, &t.balance, &t.receipts); err != nil {
		return totals{}, fmt.Errorf("totals: %w", err)
	}
	return t, nil
}

// settle waits until every event has been paid at least once and has a receipt, and the outbox is empty.
func (d *database) settle(ctx context.Context, expected totals) error {
	const query = `
select
  (select count(distinct event_id) from payments),
  (select count(distinct payment) from receipts),
  (select count(*) from watermill_outbox)`
	for {
		var payments, receipts, unsent int
		if err := d.pool.QueryRow(ctx, query).Scan(&payments, &receipts, &unsent); err != nil {
			return fmt.Errorf("settle: %w", err)
		}
		if payments >= expected.payments && receipts >= expected.receipts && unsent == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not all was done: %d of %d payments, %d receipts, %d messages in the outbox: %w",
				payments, expected.payments, receipts, unsent, context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
}
