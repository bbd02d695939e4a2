package main

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/watermill-once/watermill-once/outbox"
	"github.com/watermill-once/watermill-once/outbox/kafkasink"
)

// forwarder is Watermill's own way.
func (w *world) forwarder() way {
	return way{"watermill's forwarder", func(ctx context.Context) (time.Duration, error) {
		db := stdlib.OpenDBFromPool(w.pool)
		defer db.Close()
		schema := wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 1000}
		sqlPublisher, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		enveloped := forwarder.NewPublisher(sqlPublisher, forwarder.PublisherConfig{ForwarderTopic: "stock"})
		if err := enveloped.Publish(topic, w.messages[0]); err != nil { // which makes the table
			return 0, err
		}
		subscriber, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
			SchemaAdapter:    schema,
			OffsetsAdapter:   wsql.DefaultPostgreSQLOffsetsAdapter{},
			InitializeSchema: true,
			PollInterval:     10 * time.Millisecond,
		}, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		if err := subscriber.SubscribeInitialize("stock"); err != nil {
			return 0, err
		}
		err = w.fill(ctx, "watermill_stock, watermill_offsets_stock", func(some []*message.Message) error {
			return enveloped.Publish(topic, some...)
		})
		if err != nil {
			return 0, err
		}

		config := wkafka.DefaultSaramaSyncPublisherConfig()
		config.Version = sarama.V2_1_0_0 // the embedded Kafka refuses the default's
		publisher, err := wkafka.NewPublisher(wkafka.PublisherConfig{
			Brokers:               w.brokers,
			Marshaler:             wkafka.NewWithPartitioningMarshaler(outbox.PartitionKey),
			OverwriteSaramaConfig: config,
		}, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		defer publisher.Close()
		kafka := newTally(publisher, len(w.messages))
		f, err := forwarder.NewForwarder(subscriber, kafka, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: "stock"})
		if err != nil {
			return 0, err
		}
		return kafka.timed(ctx, f.Run)
	}}
}

// relay is ours.
func (w *world) relay() way {
	return way{"outbox.Relay, kafkasink", func(ctx context.Context) (time.Duration, error) {
		publisher, err := outbox.NewPublisher(outbox.Config{})
		if err != nil {
			return 0, err
		}
		err = w.fill(ctx, "watermill_outbox", func(some []*message.Message) error {
			tx, err := w.pool.Begin(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(ctx) }()
			return errors.Join(publisher.PublishTx(ctx, tx, topic, some...), tx.Commit(ctx))
		})
		if err != nil {
			return 0, err
		}
		sink, err := kafkasink.New(w.brokers, kafkasink.Config{})
		if err != nil {
			return 0, err
		}
		defer sink.Close()
		kafka := &batchTally{newTally(sink, len(w.messages)), sink}
		relay, err := outbox.NewRelay(w.pool, kafka, outbox.RelayConfig{}, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		return kafka.timed(ctx, relay.Run)
	}}
}

// sinkAlone tells how much of the relay's time is the sink's.
func (w *world) sinkAlone() way {
	const size = 1000
	return way{"kafkasink without a relay", func(ctx context.Context) (time.Duration, error) {
		sink, err := kafkasink.New(w.brokers, kafkasink.Config{})
		if err != nil {
			return 0, err
		}
		defer sink.Close()
		kafka := &batchTally{newTally(sink, len(w.messages)), sink}
		return kafka.timed(ctx, func(ctx context.Context) error {
			for i := 0; i < len(w.messages); i += size {
				var batch []outbox.Outgoing
				for _, msg := range w.messages[i:min(i+size, len(w.messages))] {
					batch = append(batch, outbox.Outgoing{Topic: topic, Key: msg.Metadata.Get(outbox.PartitionKeyKey), Message: msg})
				}
				if err := errors.Join(kafka.PublishBatch(ctx, batch)...); err != nil {
					return err
				}
			}
			return nil
		})
	}}
}
