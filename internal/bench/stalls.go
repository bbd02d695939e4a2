package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// stalls measures the relay under a steady load while somebody holds a transaction open: a writer in another database of the
// cluster, which stalls the stock subscriber for as long; and a snapshot in this one, as pg_dump's.
func stalls(ctx context.Context, s settings) error {
	o, err := openOutboxes(ctx)
	if err != nil {
		return err
	}
	defer o.close()
	name, err := o.server.NewDatabase(ctx, "")
	if err != nil {
		return err
	}
	elsewhere, err := pgxpool.New(ctx, o.server.URL(name))
	if err != nil {
		return err
	}
	defer elsewhere.Close()

	free, err := o.load(ctx, s.stall)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name, hold string
		pool       *pgxpool.Pool
	}{
		{"a writing transaction open in another database", "begin; create table written (id int); select pg_current_xact_id()", elsewhere},
		{"a snapshot held", "begin isolation level repeatable read read only; select count(*) from pg_class", o.pool},
	} {
		held, err := func() (loaded, error) {
			conn, err := c.pool.Acquire(ctx)
			if err != nil {
				return loaded{}, err
			}
			defer conn.Release()
			if _, err := conn.Exec(ctx, c.hold); err != nil {
				return loaded{}, err
			}
			defer conn.Exec(ctx, "rollback")
			return o.load(ctx, s.stall)
		}()
		if err != nil {
			return err
		}
		fmt.Printf("%v of load, %s: %.0f of %.0f/s written arrive; without it %.0f of %.0f/s: %.2f\n",
			s.stall, c.name, held.arrived, held.written, free.arrived, free.written, held.arrived/free.arrived)
	}
	return nil
}

// loaded are messages per second.
type loaded struct{ written, arrived float64 }

// load inserts as fast as four writers can, ten messages a transaction, for d, and gives the rate at which they arrive.
func (o *outboxes) load(ctx context.Context, d time.Duration) (loaded, error) {
	if err := o.fill(ctx, o.relay(), 0); err != nil {
		return loaded{}, err
	}
	b := &broker{}
	b.expect(-1)
	var result loaded
	err := during(ctx, func(ctx context.Context) error { return o.analyzing(ctx, o.relay(), b, d/10) }, func() error {
		n, took, err := slice(ctx, d, 4, func(ctx context.Context) error {
			err := pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error { return o.wake.PublishTx(ctx, tx, "mails", mails(10)...) })
			o.wake.Wake()
			return err
		})
		if err != nil {
			return err
		}
		// What has not arrived by the end does not count, nor does the time that it would take.
		b.mu.Lock()
		arrived := b.count
		b.mu.Unlock()
		result = loaded{written: 10 * float64(n) / took.Seconds(), arrived: float64(arrived) / took.Seconds()}
		return nil
	})
	return result, err
}

// analyzing runs a drain and has the planner believe that the outbox is nearly empty, as autovacuum does once a minute.
func (o *outboxes) analyzing(ctx context.Context, way drain, b *broker, every time.Duration) error {
	return during(ctx, func(ctx context.Context) error {
		for tick := time.NewTicker(every); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return ctx.Err()
			case <-tick.C:
				if _, err := o.pool.Exec(ctx, "analyze watermill_outbox"); err != nil && ctx.Err() == nil {
					return err
				}
			}
		}
	}, func() error { return way.run(ctx, b) })
}
