package outbox

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/internal/attempt"
	"github.com/watermill-once/watermill-once/internal/keytext"
)

// ErrInvalidMessage is matched by the errors for messages that no table could hold or no relay send: trying again does
// not help. Nothing has been written then, of any message of the call.
var ErrInvalidMessage = errors.New("outbox: invalid message")

// maxPayload is far above what brokers take, and keeps a row below what PostgreSQL takes in one message even where the
// payload travels as hexadecimal text.
const maxPayload = 256 << 20

// rows makes messages into rows of one outbox.
type rows struct {
	table string
	key   func(topic string, msg *message.Message) (string, error)
	locks *keyLocks
	wake  func()
}

// of gives the row for a message, which it leaves as it is and shares nothing with. inherited is the metadata that the
// message takes over where it has none of its own.
func (r *rows) of(topic string, msg *message.Message, inherited map[string]string) (attempt.Row, error) {
	if err := keytext.Check(topic); err != nil {
		return attempt.Row{}, invalid(topic, msg, "topic", err)
	}
	if err := keytext.Check(msg.UUID); err != nil {
		return attempt.Row{}, invalid(topic, msg, "UUID", err)
	}
	key, err := r.key(topic, msg)
	if err == nil {
		err = keytext.Check(key)
	}
	if entity, named := msg.Metadata[PartitionKeyKey]; err == nil && named && entity == "" && key == msg.UUID {
		// The entity's id was lost on the way here: without an error its messages would lose their order in silence.
		err = errors.New("metadata " + PartitionKeyKey + " is empty")
	}
	if err != nil {
		return attempt.Row{}, invalid(topic, msg, "ordering key", err)
	}
	if len(msg.Payload) > maxPayload {
		return attempt.Row{}, invalid(topic, msg, "payload", fmt.Errorf("is %d bytes long, longer than %d", len(msg.Payload), maxPayload))
	}
	metadata, err := encodeMetadata(msg.Metadata, inherited)
	if err != nil {
		return attempt.Row{}, invalid(topic, msg, "metadata", err)
	}
	row := attempt.Row{
		Table:    r.table,
		UUID:     msg.UUID,
		Topic:    topic,
		Key:      key,
		Payload:  append(make([]byte, 0, len(msg.Payload)), msg.Payload...),
		Metadata: metadata,
		Wake:     r.wake,
	}
	if key != msg.UUID || msg.Metadata[PartitionKeyKey] != "" {
		row.Lock = r.locks.of(key)
	}
	return row, nil
}

func invalid(topic string, msg *message.Message, field string, fault error) error {
	return fmt.Errorf("%w: UUID %.64q for topic %.64q: %s %w", ErrInvalidMessage, msg.UUID, topic, field, fault)
}

// checkText tells what is wrong with a text of any length.
func checkText(text string) error {
	if !utf8.ValidString(text) {
		return errors.New("is not valid UTF-8")
	}
	if strings.IndexByte(text, 0) >= 0 {
		return errors.New("holds a NUL")
	}
	return nil
}
