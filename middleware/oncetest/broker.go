package oncetest

import (
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// sent is a message that has left: given to a broker, or committed to an outbox.
type sent struct {
	topic string
	msg   *message.Message
}

// broker takes what is published.
type broker struct {
	mu   sync.Mutex
	sent []sent
	down bool
}

// errDied ends in the handler of a process that is no more.
var errDied = errors.New("oncetest: the process has died")

func (b *broker) Publish(topic string, msgs ...*message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return errDied
	}
	for _, msg := range msgs {
		kept := msg.Copy()
		kept.Payload = slices.Clone(kept.Payload)
		b.sent = append(b.sent, sent{topic, kept})
	}
	return nil
}

func (b *broker) Close() error { return nil }

func (b *broker) setDown(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
}

func (b *broker) all() []sent {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.sent)
}

// identity is what counts of a message, unless a Config says otherwise.
func identity(topic string, msg *message.Message) string {
	metadata, _ := json.Marshal(msg.Metadata) // a map of strings, which come sorted
	return topic + "\x00" + string(msg.Payload) + "\x00" + string(metadata)
}
