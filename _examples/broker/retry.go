package broker

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// How long a handler may take for one message, all retries included, before the broker gives the message to another member of
// the group too: Kafka's rebalance timeout, PostgreSQL's ack deadline, JetStream's ack wait, the idle time after which a Redis
// entry is claimed. RabbitMQ waits for half an hour.
const ackWait = time.Minute

// Retry gives Watermill's Retry with bounds that fit the brokers: it gives up, and leaves the message to the poison queue or to
// the broker, well before the broker takes it for lost. A member of a Kafka group that goes on with a message past the rebalance
// timeout holds partitions that are no longer its own, and takes part in no new assignment until that message is acked: that
// reader looks at its session between messages only, and a nack is a resend without a look. should is once.ShouldRetry.
func Retry(should func(middleware.RetryParams) bool) middleware.Retry {
	return middleware.Retry{
		MaxRetries:          5,
		InitialInterval:     50 * time.Millisecond,
		MaxInterval:         2 * time.Second,
		Multiplier:          3,
		RandomizationFactor: 0.2,
		MaxElapsedTime:      ackWait / 3,
		ShouldRetry:         should,
		ResetContextOnRetry: true,
	}
}
