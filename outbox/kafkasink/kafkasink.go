package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/outbox"
)

// Config is about one Sink. The zero value connects without TLS or SASL.
type Config struct {
	// Sarama says how to connect, and how to produce: begin with PublisherConfig. Of Producer, these have an effect:
	// Compression, CompressionLevel, MaxMessageBytes, Partitioner, Retry and Timeout. MaxMessageBytes bounds a record and
	// what goes to one partition at once; set it no higher than the topics' max.message.bytes.
	// Defaults to PublisherConfig().
	Sarama *sarama.Config

	// Marshaler makes records of messages. The key of the message takes the place of the record's. Set it where consumers
	// do not use Watermill.
	// Defaults to kafka.DefaultMarshaler{}, which watermill-kafka's Subscriber reads.
	Marshaler kafka.Marshaler

	// Key is for Publish, which is not told the messages' keys. One whose key is "" goes to any partition.
	// Defaults to outbox.PartitionKey.
	Key func(topic string, msg *message.Message) (string, error)
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	c.setDefaults()
	var faults []error
	fault := func(is bool, text string) {
		if is {
			faults = append(faults, errors.New(text))
		}
	}
	if err := c.Sarama.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("the Sarama config: %w", err))
	}
	producer := &c.Sarama.Producer
	fault(!c.Sarama.Version.IsAtLeast(sarama.V2_1_0_0), "Sarama.Version is less than 2.1")
	fault(producer.RequiredAcks != sarama.WaitForAll, "Sarama.Producer.RequiredAcks is not WaitForAll")
	fault(!producer.Idempotent, "Sarama.Producer.Idempotent is not set")
	fault(producer.Partitioner == nil, "Sarama.Producer.Partitioner is nil")
	fault(producer.Transaction.ID != "", "Sarama.Producer.Transaction is not supported")
	fault(len(producer.Interceptors) > 0, "Sarama.Producer.Interceptors are not supported")
	return errors.Join(faults...)
}

func (c *Config) setDefaults() {
	if c.Sarama == nil {
		c.Sarama = PublisherConfig()
	}
	if c.Marshaler == nil {
		c.Marshaler = kafka.DefaultMarshaler{}
	}
	if c.Key == nil {
		c.Key = outbox.PartitionKey
	}
}

// Sink sends messages to Kafka, many at a time. It is safe for concurrent use: what several goroutines publish at the
// same time shares requests. Close must be called.
type Sink struct {
	config   Config
	producer *producer
	closing  chan struct{}

	mu      sync.Mutex
	waiting []*call
	sending bool
	closed  bool
	running sync.WaitGroup
}

// New reports all faults at once. It does not connect: that is done, and done again after a loss, when there is something
// to send.
func New(brokers []string, config Config) (*Sink, error) {
	config.setDefaults()
	faults := []error{config.Validate()}
	if len(brokers) == 0 {
		faults = append(faults, errors.New("no brokers"))
	}
	for _, address := range brokers {
		if address == "" {
			faults = append(faults, errors.New("the address of a broker is empty"))
			break
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("kafkasink: %w", err)
	}
	return newSink(newCluster(brokers, config.Sarama), config), nil
}

func newSink(c cluster, config Config) *Sink {
	closing := make(chan struct{})
	return &Sink{
		config:   config,
		producer: newProducer(c, config.Sarama, closing),
		closing:  closing,
	}
}

// PublishBatch sends messages and returns an error for each, nil where all in-sync replicas have it. Errors are of type
// *MessageError. Nothing of a key is sent before all that precedes it in the batch, in any topic, has been taken: behind
// one that fails, the rest of its key gets ErrHeldBack. Messages whose key is "" are ordered with no others.
//
// An error does not mean that Kafka does not have the message: the answer may have been lost. When ctx ends, messages
// without an answer get its error, what has been sent is left to end, and what is published later waits for that. Messages
// must not be changed until then.
func (s *Sink) PublishBatch(ctx context.Context, batch []outbox.Outgoing) []error {
	if err := ctx.Err(); err != nil {
		return failAll(batch, fmt.Errorf("not sent: %w", err))
	}
	c := newCall(batch, s.config.Marshaler, s.config.Sarama.Producer.MaxMessageBytes)
	if !s.enqueue(c) {
		return failAll(batch, ErrClosed)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		c.left.Store(true)
	}
	return c.answers(ctx.Err())
}

// Publish sends messages of one topic, each under the key that Config.Key gives it, as a batch of its own. It returns the
// first of their errors. It waits until Kafka has answered or cannot be reached.
func (s *Sink) Publish(topic string, messages ...*message.Message) error {
	batch := make([]outbox.Outgoing, len(messages))
	for i, msg := range messages {
		key, err := s.config.Key(topic, msg)
		if err != nil {
			return &MessageError{Topic: topic, UUID: msg.UUID, Err: fmt.Errorf("key: %w", err), permanent: true}
		}
		batch[i] = outbox.Outgoing{Topic: topic, Key: key, Message: msg}
	}
	for _, err := range s.PublishBatch(context.Background(), batch) {
		if err != nil {
			return err
		}
	}
	return nil
}

// Close ends the Sink when it has the answer to what it has sent; what has not been sent yet gets ErrClosed. It takes no
// longer than Sarama.Net's timeouts, for each address that is being tried.
func (s *Sink) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		close(s.closing)
	}
	s.running.Wait()
	if first {
		return s.producer.cluster.close()
	}
	return nil
}

// enqueue has a call sent, by a goroutine that lasts as long as there are calls.
func (s *Sink) enqueue(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.waiting = append(s.waiting, c)
	if !s.sending {
		s.sending = true
		s.running.Add(1)
		go s.send()
	}
	return true
}

func (s *Sink) send() {
	defer s.running.Done()
	for {
		s.mu.Lock()
		calls := s.waiting
		s.waiting = nil
		s.sending = len(calls) > 0
		s.mu.Unlock()
		if len(calls) == 0 {
			return
		}
		s.producer.send(calls)
	}
}
