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
// over sql.Publisher on the default schema. Ours writes through database/sql, as they do, and through pgx; only the publishing is
// timed.
func inserts(ctx context.Context, s settings) error {
	o, err := openOutboxes(ctx)
	if err != nil {
		return err
	}
	defer o.close()
	ways := []func(context.Context, int) (time.Duration, error){o.insertOurs, o.insertOursPgx, o.insertStock}
	// One transaction of each after the other, and back: their times differ by less than the machine's speed drifts.
	for _, n := range []int{1, 2, 3, 10, 100} {
		const times = 2000
		took := make([][]time.Duration, len(ways))
		for i := range times / max(1, n/10) {
			for k := range ways {
				if i%2 == 1 {
					k = len(ways) - 1 - k
				}
				d, err := ways[k](ctx, n)
				if err != nil {
					return err
				}
				took[k] = append(took[k], d)
			}
		}
		ours, oursPgx, stock := middle(took[0]), middle(took[1]), middle(took[2])
		fmt.Printf("insert %3d messages in a transaction: ours %v, on pgx %v, stock %v: %.2fx, %.2fx\n",
			n, ours, oursPgx, stock, ours.Seconds()/stock.Seconds(), oursPgx.Seconds()/stock.Seconds())
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

func (o *outboxes) insertOursPgx(ctx context.Context, n int) (time.Duration, error) {
	tx, err := o.pool.Begin(ctx)
	if err != nil {
		return 0, err
	}
	msgs := mails(n)
	start := time.Now()
	if err := o.wake.PublishTx(ctx, tx, "mails", msgs...); err != nil {
		return 0, err
	}
	took := time.Since(start)
	return took, tx.Commit(ctx)
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
