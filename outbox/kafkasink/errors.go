package kafkasink

import (
	"errors"
	"fmt"

	"github.com/watermill-once/watermill-once/outbox"
)

// ErrHeldBack: the message was not sent, because an earlier one of its key in the batch was not taken. Nothing is known
// against the message itself: it is no failed attempt of its own.
var ErrHeldBack = errors.New("held back behind an earlier message of its key")

// ErrClosed: the Sink was closed before the message was sent.
var ErrClosed = errors.New("the sink is closed")

// MessageError tells why a message was not taken, or may not have been.
type MessageError struct {
	Topic, UUID string
	Err         error

	permanent bool
}

func (e *MessageError) Error() string {
	return fmt.Sprintf("kafkasink: message %.80q for topic %.80q: %v", e.UUID, e.Topic, e.Err)
}

func (e *MessageError) Unwrap() error { return e.Err }

// Permanent is true where sending the message again cannot help: it is larger than allowed, the Marshaler or the broker
// refuses it for what it is, or no topic can have that name. Missing topics and missing rights are not permanent: they are
// made good without touching the message.
func (e *MessageError) Permanent() bool { return e.permanent }

func failAll(batch []outbox.Outgoing, err error) []error {
	errs := make([]error, len(batch))
	for i := range batch {
		e := &MessageError{Topic: batch[i].Topic, Err: err}
		if batch[i].Message != nil {
			e.UUID = batch[i].Message.UUID
		}
		errs[i] = e
	}
	return errs
}
