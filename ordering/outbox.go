package ordering

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/internal/outboxkey"
)

// OutboxSequence is a PositionFunc for messages that came out of an outbox of this module by its relay: the entity is the
// metadata partition_key, the version outbox_sequence, which grows within a key in the order of the commits. So a
// producer needs no version of its own; what the relay sends again is stale. The versions of another outbox cannot be
// compared with it: not of another table, nor of a table that was made anew.
func OutboxSequence(msg *message.Message) (Position, error) { return outboxSequence(msg) }

var outboxSequence = Metadata(outboxkey.Partition, outboxkey.Sequence)

var _ PositionFunc = OutboxSequence
