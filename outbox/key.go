package outbox

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/internal/outboxkey"
)

// PartitionKeyKey is the metadata key under which a message carries the entity that it belongs to.
const PartitionKeyKey = outboxkey.Partition

// SequenceKey is the metadata key that the relay adds: the message's offset in the outbox, in decimal. Of one key it
// grows in the order of the commits, and a message keeps it however often it is sent: so it is a version of the entity,
// which ordering.OutboxSequence reads.
const SequenceKey = outboxkey.Sequence

// PartitionKey is the message's partition_key, or its UUID where it has none: such messages spread evenly and in no
// order. It is never empty and never fails, so that it fits kafka.NewWithPartitioningMarshaler, also for a poison queue: a
// record of another producer, which has neither, gets a key drawn at random.
func PartitionKey(_ string, msg *message.Message) (string, error) {
	if key := msg.Metadata[PartitionKeyKey]; key != "" {
		return key, nil
	}
	if msg.UUID != "" {
		return msg.UUID, nil
	}
	return watermill.NewUUID(), nil
}
