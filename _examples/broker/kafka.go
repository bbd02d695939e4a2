package broker

import (
	"context"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/outbox/kafkasink"
)

// kafkaVersion names the protocol. Without it sarama speaks that of Kafka 1.0, which has no idempotent producer and which Kafka 4
// no longer understands. Every later broker speaks 2.1, and the embedded one no later with this sarama.
var kafkaVersion = sarama.V2_1_0_0

// kafka reads by watermill-kafka, and writes by package kafkasink, what the outbox's relay gives it in batches too.
func kafka(a *address) opener {
	if len(a.hosts) == 1 && a.hosts[0] == "embedded" {
		a.noPath()
		partitions := a.number("partitions", 4, 1, 1000)
		return func(ctx context.Context, logger watermill.LoggerAdapter) (*Broker, error) {
			return embeddedKafka(ctx, int32(partitions), logger)
		}
	}
	a.noPath()
	k := kafkaSettings{
		brokers: a.hostPorts("9092"),
		// Of topics that Create makes. More cannot be had later without moving keys: a key's order is that of its partition.
		partitions: int32(a.number("partitions", 12, 1, 10_000)),
		// 0 is the broker's default.replication.factor. Production wants 3, and min.insync.replicas 2.
		replication: int16(a.number("replication", 0, 0, 100)),
		// After how long a member that has died is missed.
		session: a.duration("session_timeout", 10*time.Second, time.Second),
		ackWait: a.duration("ack_wait", ackWait, time.Second),
		tls:     a.boolean("tls"),
	}
	if a.user != nil {
		k.user, k.password = a.user.Username(), a.password()
	}
	return func(ctx context.Context, logger watermill.LoggerAdapter) (*Broker, error) { return k.open(ctx, logger) }
}

type kafkaSettings struct {
	brokers        []string
	partitions     int32
	replication    int16
	session        time.Duration
	ackWait        time.Duration
	tls            bool
	user, password string // SASL PLAIN where there is a user
}

func (k kafkaSettings) open(ctx context.Context, logger watermill.LoggerAdapter) (*Broker, error) {
	if err := reach(ctx, k.brokers...); err != nil {
		return nil, err
	}
	client, err := within(ctx, func() (sarama.Client, error) {
		config := k.producer()
		config.Metadata.Retry.Max = 0
		config.Net.DialTimeout, config.Net.ReadTimeout, config.Net.WriteTimeout = left(ctx), left(ctx), left(ctx)
		return sarama.NewClient(k.brokers, config)
	}, func(late sarama.Client) { _ = late.Close() })
	if err != nil {
		return nil, err
	}
	if err := client.Close(); err != nil {
		return nil, err
	}
	// kafkasink and not watermill-kafka's Publisher, of which a request that fails for good can put a key out of order. Its record
	// keys are outbox.PartitionKey: what the outbox keeps in order goes to one partition.
	sink, err := kafkasink.New(k.brokers, kafkasink.Config{Sarama: k.producer()})
	if err != nil {
		return nil, err
	}
	return &Broker{
		Publisher: kafkaPublisher{sink},
		subscribe: func(group, _ string) (message.Subscriber, error) { return k.subscriber(group, logger) },
		create: func(ctx context.Context, topic string, _ []string) error {
			subscriber, err := k.subscriber("", logger)
			if err != nil {
				return err
			}
			defer func() { _ = subscriber.Close() }()
			return subscriber.SubscribeInitializeWithContext(ctx, topic)
		},
		close: sink.Close,
	}, nil
}

// kafkaPublisher is what the Broker closes, and not one of those who use it.
type kafkaPublisher struct{ *kafkasink.Sink }

func (kafkaPublisher) Close() error { return nil }

func (k kafkaSettings) subscriber(group string, logger watermill.LoggerAdapter) (*wkafka.Subscriber, error) {
	details := &sarama.TopicDetail{NumPartitions: k.partitions, ReplicationFactor: k.replication}
	if k.replication == 0 {
		details.ReplicationFactor = -1
	}
	return wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers:                k.brokers,
		ConsumerGroup:          group,
		OverwriteSaramaConfig:  k.consumer(),
		Unmarshaler:            kafkaUnmarshaler{},
		InitializeTopicDetails: details,

		// A nack is a resend after this pause, without a look at the session: see Retry. The pause cannot be broken off, so it is short.
		NackResendSleep:     100 * time.Millisecond,
		ReconnectRetrySleep: time.Second,
	}, logger)
}

// producer gives settings under which all in-sync replicas have a message when Publish returns (acks=all), a repeated request
// stores nothing twice (idempotent) and overtakes none (one open request). kafkasink.PublisherConfig has the reasons.
func (k kafkaSettings) producer() *sarama.Config {
	config := kafkasink.PublisherConfig()
	config.Version = kafkaVersion
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	k.secure(config)
	return config
}

func (k kafkaSettings) consumer() *sarama.Config {
	config := kafkasink.SubscriberConfig()
	config.Version = kafkaVersion

	// A group that is new, or whose offsets have expired, begins with what is oldest: the default, what comes next, loses whatever
	// was there before.
	config.Consumer.Offsets.Initial = sarama.OffsetOldest

	// What was handled in the last second before a crash comes again, and is found to be a duplicate.
	config.Consumer.Offsets.AutoCommit.Interval = time.Second

	// One that leaves, or comes, is noticed by the others within a tenth of that.
	config.Consumer.Group.Session.Timeout = k.session
	config.Consumer.Group.Heartbeat.Interval = k.session / 10

	// How long the others wait, when partitions are handed over, for the messages in hand: see Retry.
	config.Consumer.Group.Rebalance.Timeout = k.ackWait
	k.secure(config)
	return config
}

func (k kafkaSettings) secure(config *sarama.Config) {
	config.Net.TLS.Enable = k.tls
	if k.user != "" {
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLTypePlaintext
		config.Net.SASL.User, config.Net.SASL.Password = k.user, k.password
	}
}

// kafkaUnmarshaler never fails: after an error the plugin would read the same record again, for ever. A record of a producer that
// is not Watermill has no UUID, and metadata of its headers; a tombstone has no payload.
type kafkaUnmarshaler struct{}

func (kafkaUnmarshaler) Unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	msg, err := wkafka.DefaultMarshaler{}.Unmarshal(record)
	if err != nil {
		return undecoded(record.Value, err.Error()), nil
	}
	return msg, nil
}
