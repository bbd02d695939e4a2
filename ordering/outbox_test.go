package ordering_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/ordering"
)

func TestOutboxSequence(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("uuid", nil)
	msg.Metadata.Set("partition_key", "card-1")
	msg.Metadata.Set("outbox_sequence", "9007199254740993")
	position, err := ordering.OutboxSequence(msg)
	require.NoError(t, err)
	require.Equal(t, ordering.Position{Entity: "card-1", Version: 9007199254740993}, position)

	delete(msg.Metadata, "outbox_sequence")
	_, err = ordering.OutboxSequence(msg)
	require.ErrorIs(t, err, ordering.ErrInvalidPosition)
	msg.Metadata = message.Metadata{"outbox_sequence": "1"}
	_, err = ordering.OutboxSequence(msg)
	require.ErrorIs(t, err, ordering.ErrInvalidPosition)
}
