package kafkasink_test

import (
	"context"
	"errors"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/outbox"
	"github.com/watermill-once/watermill-once/outbox/kafkasink"
)

func ExampleNew() {
	relay := func(ctx context.Context, pool *pgxpool.Pool, logger watermill.LoggerAdapter) (err error) {
		config := kafkasink.PublisherConfig()
		config.Net.TLS.Enable = true
		config.Producer.Compression = sarama.CompressionLZ4
		sink, err := kafkasink.New([]string{"kafka-1:9093", "kafka-2:9093"}, kafkasink.Config{Sarama: config})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, sink.Close()) }()
		relay, err := outbox.NewRelay(pool, sink, outbox.RelayConfig{}, logger)
		if err != nil {
			return err
		}
		return relay.Run(ctx)
	}
	_ = relay
}

func ExampleSubscriberConfig() {
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers:               []string{"kafka-1:9092"},
		ConsumerGroup:         "card-service",
		OverwriteSaramaConfig: kafkasink.SubscriberConfig(),
	}, watermill.NopLogger{})
	_, _ = subscriber, err
}
