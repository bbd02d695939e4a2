package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// subscriber gives each subscription a plugin's Subscriber of its own, which it ends by closing it. Plugins are made to be closed:
// a context that ends instead breaks off a query that is under way, or leaves a channel closed under a message on its way to it.
type subscriber struct {
	broker *Broker
	group  string

	mu     sync.Mutex
	closed bool
	open   []*subscription
}

type subscription struct {
	plugin message.Subscriber
	once   sync.Once
	err    error
}

func (s *subscription) close() error {
	s.once.Do(func() { s.err = s.plugin.Close() })
	return s.err
}

// Subscribe reads until the context ends or the Subscriber is closed.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("broker: the subscriber is closed")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	plugin, err := s.broker.subscribe(s.group, topic)
	if err != nil {
		return nil, s.fault(topic, err)
	}
	messages, err := plugin.Subscribe(context.WithoutCancel(ctx), topic)
	if err != nil {
		return nil, s.fault(topic, errors.Join(err, plugin.Close()))
	}
	opened := &subscription{plugin: plugin}
	s.open = append(s.open, opened)
	context.AfterFunc(ctx, func() {
		if opened.close() == nil {
			s.forget(opened)
		}
	})
	return messages, nil
}

func (s *subscriber) forget(ended *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = slices.DeleteFunc(s.open, func(one *subscription) bool { return one == ended })
}

func (s *subscriber) fault(topic string, err error) error {
	return fmt.Errorf("broker: group %s, topic %s: %w", s.group, topic, s.broker.secrets.redact(err))
}

// Close ends all subscriptions.
func (s *subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	open := slices.Clone(s.open)
	s.mu.Unlock()
	errs := make([]error, len(open))
	var all sync.WaitGroup
	for i, one := range open {
		all.Go(func() { errs[i] = one.close() })
	}
	all.Wait()
	return s.broker.secrets.redact(errors.Join(errs...))
}
