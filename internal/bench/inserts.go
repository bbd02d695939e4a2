package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
)

// inserts measures what a message costs in the transaction that produces it, beside the stock publishers: forwarder.NewPublisher
// over sql.Publisher on the default schema. Both use database/sql; only the publishing is timed.
func inserts(ctx context.Context, s settings) error {
	o, err := openOutboxes(ctx)
	if err != nil {
		return err
	}
	defer o.close()
	// One transaction of either after the other, and back: their times differ by less than the machine's speed drifts.
	for _, n := range []int{1, 2, 3, 10, 100} {
		const times = 2000
		var ours, stock []time.Duration
		for i := range times / max(1, n/10) {
			for k := range 2 {
				var took time.Duration
				if i%2 == k {
					took, err = o.insertOurs(ctx, n)
					ours = append(ours, took)
				} else {
					took, err = o.insertStock(ctx, n)
					stock = append(stock, took)
				}
				if err != nil {
					return err
				}
			}
		}
		a, b := middle(ours), middle(stock)
		fmt.Printf("insert %3d messages in a transaction: ours %v, stock %v: %.2fx\n", n, a, b, a.Seconds()/b.Seconds())
	}
	return nil
}

func (o *outboxes) insertOurs(ctx context.Context, n int) (time.Duration, error) {
	tx, err := o.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	msgs := mails(n)
	start := time.Now()
	if err := o.wake.PublishSQLTx(ctx, tx, "mails", msgs...); err != nil {
		return 0, err
	}
	took := time.Since(start)
	return took, tx.Commit()
}

func (o *outboxes) insertStock(ctx context.Context, n int) (time.Duration, error) {
	tx, err := o.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	msgs := mails(n)
	start := time.Now()
	publisher, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, nil)
	if err != nil {
		return 0, err
	}
	err = forwarder.NewPublisher(publisher, forwarder.PublisherConfig{ForwarderTopic: stockTopic}).Publish("mails", msgs...)
	if err != nil {
		return 0, err
	}
	took := time.Since(start)
	return took, tx.Commit()
}

func middle(values []time.Duration) time.Duration {
	slices.Sort(values)
	return values[len(values)/2]
}
