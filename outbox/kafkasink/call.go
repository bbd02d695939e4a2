package kafkasink

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"

	"github.com/watermill-once/watermill-once/outbox"
)

// call is one call of PublishBatch.
type call struct {
	items []item
	done  chan struct{}
	left  atomic.Bool // the caller no longer waits

	mu   sync.Mutex
	errs []error // errNoAnswer for those without
	open int     // how many these are
}

var errNoAnswer = errors.New("no answer from Kafka yet")

// item is one message of a call, on its way.
type item struct {
	call    *call
	index   int
	lane    *lane
	topic   string
	uuid    string
	record  sarama.Record
	time    time.Time
	size    int
	fault   error // why it cannot be sent at all
	settled bool
}

// lane is what the messages of one key in one call share: they go one after the other.
type lane struct {
	failed bool   // the rest is held back
	round  int    // the last round in which something of it went out, or had to wait
	batch  *batch // that which took it in that round, and can take more of it
}

// batchOverhead is what a record batch needs beside its records.
const batchOverhead = 61

// newCall makes records of the messages: in the caller's goroutine, while earlier calls are being sent.
func newCall(messages []outbox.Outgoing, marshaler kafka.Marshaler, maxBytes int) *call {
	c := &call{
		items: make([]item, len(messages)),
		done:  make(chan struct{}),
		errs:  make([]error, len(messages)),
		open:  len(messages),
	}
	if len(messages) == 0 {
		close(c.done)
	}
	for i := range c.errs {
		c.errs[i] = errNoAnswer
	}
	now := time.Now()
	lanes := make(map[string]*lane, len(messages))
	all := make([]lane, len(messages))
	for i := range messages {
		it := &c.items[i]
		it.call, it.index = c, i
		it.lane = &all[i]
		if key := messages[i].Key; key != "" {
			if known := lanes[key]; known != nil {
				it.lane = known
			} else {
				lanes[key] = it.lane
			}
		}
		it.fault = it.marshal(messages[i], marshaler, now)
		if it.fault == nil && it.size+batchOverhead > maxBytes {
			it.fault = fmt.Errorf("takes %d bytes, and Sarama.Producer.MaxMessageBytes is %d", it.size+batchOverhead, maxBytes)
		}
	}
	return c
}

func (it *item) marshal(out outbox.Outgoing, marshaler kafka.Marshaler, now time.Time) error {
	it.topic = out.Topic
	if out.Message == nil {
		return errors.New("the message is nil")
	}
	it.uuid = out.Message.UUID
	if err := checkTopic(out.Topic); err != nil {
		return err
	}
	m, err := marshaler.Marshal(out.Topic, out.Message)
	if err != nil {
		return fmt.Errorf("marshal: %w", err)
	}
	if out.Key != "" {
		m.Key = sarama.StringEncoder(out.Key)
	}
	if m.Key != nil {
		if it.record.Key, err = m.Key.Encode(); err != nil {
			return fmt.Errorf("marshal: key: %w", err)
		}
	}
	if m.Value != nil {
		if it.record.Value, err = m.Value.Encode(); err != nil {
			return fmt.Errorf("marshal: value: %w", err)
		}
	}
	it.record.Headers = make([]*sarama.RecordHeader, len(m.Headers))
	for i := range m.Headers {
		it.record.Headers[i] = &m.Headers[i]
	}
	it.time = now
	if !m.Timestamp.IsZero() {
		it.time = m.Timestamp
	}
	it.size = m.ByteSize(2) // of the record format, the one since Kafka 0.11
	return nil
}

// checkTopic applies Kafka's rule for names, so that one bad name does not cost the others a request.
func checkTopic(topic string) error {
	if topic == "" || topic == "." || topic == ".." || len(topic) > 249 {
		return errors.New("no topic can have that name")
	}
	for i := range len(topic) {
		switch c := topic[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return errors.New("no topic can have that name")
		}
	}
	return nil
}

// fail settles an item that Kafka does not have, as far as is known, and holds back what comes behind it.
func (it *item) fail(err error, permanent bool) {
	it.lane.failed = true
	it.settle(&MessageError{Topic: it.topic, UUID: it.uuid, Err: err, permanent: permanent})
}

func (it *item) settle(err error) {
	it.settled = true
	c := it.call
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs[it.index] = err
	if c.open--; c.open == 0 {
		close(c.done)
	}
}

// answers gives what is known, and an error with the cause for what is not.
func (c *call) answers(cause error) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	answers := make([]error, len(c.errs)) // its own copy: the rest may still come in
	for i, err := range c.errs {
		if err == errNoAnswer {
			it := &c.items[i]
			err = &MessageError{Topic: it.topic, UUID: it.uuid, Err: fmt.Errorf("%w: %w", errNoAnswer, cause)}
		}
		answers[i] = err
	}
	return answers
}
