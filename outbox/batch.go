package outbox

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Outgoing is a message on its way from an outbox to a broker.
type Outgoing struct {
	Topic   string
	Key     string // the ordering key, as in Config.Key
	Message *message.Message
}

// BatchPublisher is implemented by brokers that take many messages, of many topics, at once. The relay then sends
// whole batches, in the order of the outbox; several messages of one key may be in one batch.
//
// PublishBatch gives an error for each message of the batch, nil for those that the broker has taken. It must not send
// anything of a key behind a message of that key that failed: the error of those behind it is not nil either. It is
// called once at a time.
type BatchPublisher interface {
	PublishBatch(ctx context.Context, batch []Outgoing) []error
}
