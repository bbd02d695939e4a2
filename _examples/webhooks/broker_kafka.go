package main

import (
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/watermill-once/watermill-once/outbox"
)

// kafkaBroker is Kafka at "host:9092,host:9092".
func kafkaBroker(hosts string, logger watermill.LoggerAdapter) (*broker, error) {
	addresses := strings.Split(hosts, ",")
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: addresses,
		// What the outbox keeps in order goes to one partition.
		Marshaler:             kafka.NewWithPartitioningMarshaler(outbox.PartitionKey),
		OverwriteSaramaConfig: safeProducer(),
	}, logger)
	if err != nil {
		return nil, err
	}
	newSubscriber := func(group string) (*kafka.Subscriber, error) {
		return kafka.NewSubscriber(kafka.SubscriberConfig{
			Brokers:                addresses,
			ConsumerGroup:          group,
			OverwriteSaramaConfig:  patientConsumer(),
			InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: 4, ReplicationFactor: 1},
		}, logger)
	}
	return &broker{
		publisher:  publisher,
		subscriber: func(group string) (message.Subscriber, error) { return newSubscriber(group) },
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
		close: publisher.Close,
	}, nil
}

// embeddedKafkaBroker starts a stand-in for Kafka in this program.
func embeddedKafkaBroker(logger watermill.LoggerAdapter) (*broker, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		return nil, err
	}
	b, err := kafkaBroker(strings.Join(cluster.ListenAddrs(), ","), logger)
	if err != nil {
		cluster.Close()
		return nil, err
	}
	closePublisher := b.close
	b.close = func() error {
		defer cluster.Close()
		return closePublisher()
	}
	return b, nil
}

// safeProducer answers when all replicas have a message, and neither doubles nor reorders messages when it sends again.
func safeProducer() *sarama.Config {
	config := kafka.DefaultSaramaSyncPublisherConfig()
	config.Version = sarama.V2_1_0_0
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Metadata.Retry.Backoff = 100 * time.Millisecond
	return config
}

// patientConsumer reads a topic from its beginning, and hands partitions over quickly.
func patientConsumer() *sarama.Config {
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Version = sarama.V2_1_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	config.Consumer.Group.Heartbeat.Interval = 100 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	return config
}
