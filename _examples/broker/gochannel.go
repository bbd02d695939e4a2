package broker

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
)

// goChannel is for tests and demonstrations: messages are in memory, and gone with the program. A message that comes when nobody
// has subscribed to its topic is dropped.
func goChannel(a *address) opener {
	a.noHost()
	return func(_ context.Context, logger watermill.LoggerAdapter) (*Broker, error) {
		channel := gochannel.NewGoChannel(gochannel.Config{
			// Publish returns when every group has handled the message: whoever publishes, a relay for example, keeps it until
			// then. It also keeps the messages in order.
			BlockPublishUntilSubscriberAck: true,
		}, logger)
		groups := &inMemoryGroups{channel: channel, readers: map[[2]string]*inMemoryReader{}}
		return &Broker{
			Publisher: channel,
			subscribe: groups.subscriber,
			close:     channel.Close,
		}, nil
	}
}

// inMemoryGroups has the members of a group share its messages: to gochannel alone, each would be a group of its own.
type inMemoryGroups struct {
	channel *gochannel.GoChannel

	mu      sync.Mutex
	readers map[[2]string]*inMemoryReader
}

type inMemoryReader struct {
	messages <-chan *message.Message
	cancel   context.CancelFunc
	members  int
}

func (g *inMemoryGroups) subscriber(group, _ string) (message.Subscriber, error) {
	return &inMemoryMember{groups: g, group: group, closing: make(chan struct{})}, nil
}

// join gives what the group reads; it reads as long as it has members.
func (g *inMemoryGroups) join(group, topic string) (<-chan *message.Message, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	reader := g.readers[[2]string{group, topic}]
	if reader == nil {
		ctx, cancel := context.WithCancel(context.Background())
		messages, err := g.channel.Subscribe(ctx, topic)
		if err != nil {
			cancel()
			return nil, err
		}
		reader = &inMemoryReader{messages: messages, cancel: cancel}
		g.readers[[2]string{group, topic}] = reader
	}
	reader.members++
	return reader.messages, nil
}

func (g *inMemoryGroups) leave(group, topic string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	reader := g.readers[[2]string{group, topic}]
	if reader.members--; reader.members == 0 {
		reader.cancel()
		delete(g.readers, [2]string{group, topic})
	}
}

type inMemoryMember struct {
	groups  *inMemoryGroups
	group   string
	closing chan struct{}
	running sync.WaitGroup
}

func (m *inMemoryMember) Subscribe(_ context.Context, topic string) (<-chan *message.Message, error) {
	messages, err := m.groups.join(m.group, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	m.running.Go(func() {
		defer close(out)
		defer m.groups.leave(m.group, topic)
		for {
			select {
			case <-m.closing:
				return
			case msg, ok := <-messages:
				if !ok {
					return
				}
				select {
				case out <- msg:
				case <-m.closing:
					msg.Nack() // for another member
					return
				}
			}
		}
	})
	return out, nil
}

func (m *inMemoryMember) Close() error {
	close(m.closing)
	m.running.Wait()
	return nil
}
