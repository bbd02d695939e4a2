package outbox

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

// PartitionKeyKey is the metadata key under which a message carries the entity that it belongs to.
const PartitionKeyKey = "partition_key"

// PartitionKey is the message's partition_key, or its UUID where it has none: such messages spread evenly and in no
// order. It is never empty. It fits kafka.NewWithPartitioningMarshaler, so that what the outbox keeps in order lands in
// one partition.
func PartitionKey(_ string, msg *message.Message) (string, error) {
	key, named := msg.Metadata[PartitionKeyKey]
	switch {
	case named && key == "":
		// The entity's id was lost on the way here: without an error its messages would lose their order in silence.
		return "", errors.New("metadata " + PartitionKeyKey + " is empty")
	case named:
		return key, nil
	case msg.UUID == "":
		return "", errors.New("neither metadata " + PartitionKeyKey + " nor a UUID")
	}
	return msg.UUID, nil
}
