package main

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/stdlib"
)

// postgresBroker is watermill-sql on PostgreSQL. Here it may be the database that the consumers write to as well; they do not
// depend on that, and their transactions are others than the subscriber's.
func postgresBroker(db *database, close func() error, logger watermill.LoggerAdapter) (*broker, error) {
	// Connections of its own: a subscriber keeps one for as long as a consumer works, and the consumer needs another.
	handle := stdlib.OpenDB(*db.pool.Config().ConnConfig)
	handle.SetMaxOpenConns(20)
	schema := wsql.DefaultPostgreSQLSchema{
		// The default is a JSON column, which refuses what is no JSON and gives back other bytes than it was given.
		GeneratePayloadType: func(string) string { return "bytea" },
	}
	publisher, err := wsql.NewPublisher(handle, wsql.PublisherConfig{SchemaAdapter: schema}, logger)
	if err != nil {
		return nil, err
	}
	newSubscriber := func(group string) (*wsql.Subscriber, error) {
		return wsql.NewSubscriber(handle, wsql.SubscriberConfig{
			ConsumerGroup:  group,
			SchemaAdapter:  schema,
			OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
			PollInterval:   20 * time.Millisecond,
		}, logger)
	}
	return &broker{
		publisher: publisher,
		subscriber: func(group string) (message.Subscriber, error) {
			subscriber, err := newSubscriber(group)
			return calm{subscriber}, err
		},
		create: func(topics ...string) error {
			subscriber, err := newSubscriber("")
			if err != nil {
				return err
			}
			defer subscriber.Close()
			for _, topic := range topics {
				if err := subscriber.SubscribeInitialize(topic); err != nil {
					return err
				}
			}
			return nil
		},
		close: func() error {
			if err := handle.Close(); err != nil {
				return err
			}
			return close()
		},
	}, nil
}

// calm ends a subscription by Close alone, which waits for the query that is under way. The end of a context breaks it off, and
// leaves an error in the log.
type calm struct{ *wsql.Subscriber }

func (c calm) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return c.Subscriber.Subscribe(context.WithoutCancel(ctx), topic)
}
