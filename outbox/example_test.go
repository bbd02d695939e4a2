package outbox_test

import (
	"context"
	"log"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/watermill-once/watermill-once/outbox"
)

// The order and the message about it commit together, or neither does.
func ExamplePublisher_PublishTx() {
	var (
		ctx  context.Context
		pool *pgxpool.Pool
	)
	publisher, err := outbox.NewPublisher(outbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into orders (id, total) values ($1, $2)`, "o-1", 990); err != nil {
			return err
		}
		msg := message.NewMessage(watermill.NewUUID(), []byte(`{"order": "o-1", "total": 990}`))
		msg.Metadata.Set(outbox.PartitionKeyKey, "o-1")
		return publisher.PublishTx(ctx, tx, "order-placed", msg) // last: it locks the key until the COMMIT
	})
	if err != nil {
		log.Fatal(err)
	}
	publisher.Wake()
}

func ExampleRelay() {
	var (
		ctx       context.Context
		pool      *pgxpool.Pool
		broker    message.Publisher
		publisher *outbox.Publisher
	)
	relay, err := outbox.NewRelay(pool, broker, outbox.RelayConfig{Wake: publisher}, watermill.NewSlogLogger(nil))
	if err != nil {
		log.Fatal(err)
	}
	if err := relay.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// Watermill's forwarder drains the same table, through watermill-sql's Subscriber.
func ExampleSchemaAdapter() {
	var (
		ctx    context.Context
		pool   *pgxpool.Pool
		broker message.Publisher
		logger watermill.LoggerAdapter
	)
	subscriber, err := wsql.NewSubscriber(stdlib.OpenDBFromPool(pool), wsql.SubscriberConfig{
		SchemaAdapter:  outbox.SchemaAdapter{},
		OffsetsAdapter: outbox.OffsetsAdapter{},
	}, logger)
	if err != nil {
		log.Fatal(err)
	}
	f, err := forwarder.NewForwarder(subscriber, broker, logger, forwarder.Config{ForwarderTopic: "outbox"})
	if err != nil {
		log.Fatal(err)
	}
	if err := f.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
