// Package broker opens a message broker that a URL names, with settings under which events are neither lost nor reordered
// by itself. It is made to be copied: it needs nothing of the examples around it.
//
//	b, err := broker.Open(ctx, "kafka://localhost:9092", logger)
//	...
//	defer b.Close()
//	err = b.Create(ctx, "orders", "billing")          // a topic, and the groups that read it
//	subscriber, err := b.Subscriber("billing")        // for router.AddConsumerHandler
//	relay, err := outbox.NewRelay(pool, b.Publisher, outbox.RelayConfig{}, logger)
//
// README.md lists the schemes and their options. Each broker has a file of its own, with the reason beside each setting. What
// they have in common: messages come at least once, and come again after a nack, a crash or a change in the group. That each has
// its effects once is for the middleware.
package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/outbox"
)

// connectWithin bounds Open, where its context does not end sooner.
const connectWithin = 15 * time.Second

// Broker is all that a program knows of one.
type Broker struct {
	// Publisher has a message safe with the broker when Publish returns nil. It is closed by Broker.Close; its own Close does
	// nothing, so that several parts of a program can share it.
	Publisher message.Publisher

	secrets   secrets
	subscribe func(group, topic string) (message.Subscriber, error) // for one subscription
	create    func(ctx context.Context, topic string, groups []string) error
	close     func() error

	mu          sync.Mutex
	subscribers []*subscriber

	once sync.Once
	err  error
}

// Open connects to the broker at address. The scheme and the options are checked first, and all that is wrong with them comes
// back in one error. It returns within 15 seconds, or when ctx ends. No password of the address gets into an error or a log.
func Open(ctx context.Context, address string, logger watermill.LoggerAdapter) (*Broker, error) {
	a, open, err := parse(address)
	if err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, connectWithin, fmt.Errorf("not connected within %v", connectWithin))
	defer cancel()
	b, err := open(ctx, a.secrets.logger(logger))
	if err != nil {
		return nil, fmt.Errorf("broker: %s: %w", a.scheme, a.secrets.redact(err))
	}
	b.secrets = a.secrets
	if _, batches := b.Publisher.(outbox.BatchPublisher); !batches {
		b.Publisher = publisher{b.Publisher, a.secrets}
	}
	return b, nil
}

// Check finds what is wrong with an address, without connecting to it.
func Check(address string) error {
	if _, _, err := parse(address); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	return nil
}

// Subscriber reads for a group. Each group gets every message; the members of one, in this process and in others, share them. A
// group that is new begins with the oldest message, where the broker keeps any (README.md). The caller closes it, or the Router
// does.
func (b *Broker) Subscriber(group string) (message.Subscriber, error) {
	if group == "" {
		return nil, errors.New("broker: a subscriber needs a group")
	}
	s := &subscriber{broker: b, group: group}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscribers = append(b.subscribers, s)
	return s, nil
}

// Create makes a topic, and makes it known which groups will read it, if they are not there yet. Brokers that keep a message for
// the groups they know (amqp) need the groups before anything is published, the poison queue's too; brokers that make no topics
// by themselves need the topic.
func (b *Broker) Create(ctx context.Context, topic string, groups ...string) error {
	if b.create == nil {
		return nil
	}
	if err := b.create(ctx, topic, groups); err != nil {
		return fmt.Errorf("broker: create topic %s: %w", topic, b.secrets.redact(err))
	}
	return nil
}

// Close ends everything: it closes the subscribers that are open, waits until those whose contexts have ended have let go of what
// they had, and ends the connections.
func (b *Broker) Close() error {
	b.once.Do(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		errs := make([]error, len(b.subscribers), len(b.subscribers)+1)
		var all sync.WaitGroup
		for i, s := range b.subscribers {
			all.Go(func() { errs[i] = s.Close() })
		}
		all.Wait()
		b.err = errors.Join(append(errs, b.secrets.redact(b.close()))...)
	})
	return b.err
}

// publisher is what the Broker closes, and not one of those who use it.
type publisher struct {
	plugin  message.Publisher
	secrets secrets
}

func (p publisher) Publish(topic string, messages ...*message.Message) error {
	return p.secrets.redact(p.plugin.Publish(topic, messages...))
}

func (publisher) Close() error { return nil }
