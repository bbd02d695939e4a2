package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
)

// latency measures how long a message takes from its COMMIT to the broker in an idle system.
func latency(ctx context.Context, _ settings) error {
	o, err := openOutboxes(ctx)
	if err != nil {
		return err
	}
	defer o.close()

	ours := func() error {
		return pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
			return o.wake.PublishTx(ctx, tx, "mails", mail("m", "card-1"))
		})
	}
	stockPublisher, err := wsql.NewPublisher(o.db, wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, nil)
	if err != nil {
		return err
	}
	stock := forwarder.NewPublisher(stockPublisher, forwarder.PublisherConfig{ForwarderTopic: stockTopic})

	relay, err := o.latencies(ctx, o.relay(), 500, func() error {
		if err := ours(); err != nil {
			return err
		}
		o.wake.Wake()
		return nil
	})
	if err != nil {
		return err
	}
	forwarded, err := o.latencies(ctx, o.stockDefault(), 30, func() error { return stock.Publish("mails", mail("m", "card-1")) })
	if err != nil {
		return err
	}
	p50, p99, stock50 := percentile(relay, 50), percentile(relay, 99), percentile(forwarded, 50)
	fmt.Printf("one message, commit to publish: relay p50 %v, p99 %v; stock, default settings, p50 %v: 1/%.0f and 1/%.0f of it\n",
		p50, p99, stock50, stock50.Seconds()/p50.Seconds(), stock50.Seconds()/p99.Seconds())
	return nil
}

// latencies sends n messages, each at a moment that nobody knows.
func (o *outboxes) latencies(ctx context.Context, d drain, n int, commit func() error) ([]time.Duration, error) {
	if err := o.fill(ctx, d, 0); err != nil {
		return nil, err
	}
	arrived := make(chan time.Time, 1)
	b := &broker{seen: func(*message.Message) { arrived <- time.Now() }}
	var result []time.Duration
	err := during(ctx, func(ctx context.Context) error { return d.run(ctx, b) }, func() error {
		for i := range n + 1 {
			time.Sleep(time.Duration(i*37%50) * time.Millisecond) // off the beat of any polling
			if err := commit(); err != nil {
				return err
			}
			committed := time.Now()
			select {
			case at := <-arrived:
				if i > 0 { // the first finds the relay starting
					result = append(result, max(0, at.Sub(committed)))
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	return result, err
}

func percentile(values []time.Duration, p int) time.Duration {
	values = slices.Clone(values)
	slices.Sort(values)
	return values[min(len(values)-1, len(values)*p/100)].Round(time.Microsecond)
}
