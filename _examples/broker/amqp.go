package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// amqp is RabbitMQ, read by watermill-amqp: a durable fanout exchange for each topic, a durable queue for each group and topic. A
// queue has what was published since it was made; so Create it, with the group, before anything is.
//
// The server waits half an hour for an ack (consumer_timeout). A consumer that dies gives its messages back at once.
func amqp(a *address) opener {
	// How many messages a member has in its hands: the plugin handles one at a time, and those that wait behind a nacked one overtake
	// it, since it goes back to the queue.
	prefetch := a.number("prefetch", 1, 1, 10_000)
	host, port, _ := net.SplitHostPort(a.oneHost(map[string]string{"amqp": "5672", "amqps": "5671"}[a.scheme]))
	number, _ := strconv.Atoi(port)
	uri := amqp091.URI{Scheme: a.scheme, Host: host, Port: number, Username: "guest", Password: "guest", Vhost: "/"}
	if a.user != nil {
		uri.Username, uri.Password = a.user.Username(), a.password()
	}
	if a.path != "" {
		uri.Vhost = a.path
	}
	config := wamqp.NewDurablePubSubConfig(uri.String(), nil)
	config.Consume.Qos.PrefetchCount = prefetch
	config.Marshaler = amqpMarshaler{}
	config.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 200 * time.Millisecond, BackoffMultiplier: 2, BackoffRandomizationFactor: 0.2,
		BackoffMaxInterval: 5 * time.Second, // the default is a minute
	}
	return func(ctx context.Context, logger watermill.LoggerAdapter) (*Broker, error) {
		if err := reach(ctx, net.JoinHostPort(host, port)); err != nil {
			return nil, err
		}
		p, err := within(ctx, func() (*amqpPublisher, error) {
			p := &amqpPublisher{uri: uri.String()}
			c, err := p.channelWithin(left(ctx))
			if err != nil {
				return nil, errors.Join(err, p.Close())
			}
			p.keep(c)
			return p, nil
		}, func(late *amqpPublisher) { _ = late.Close() })
		if err != nil {
			return nil, err
		}
		return &Broker{
			Publisher: p,
			subscribe: func(group, _ string) (message.Subscriber, error) {
				config := config
				config.Queue.GenerateName = func(topic string) string { return amqpQueue(group, topic) }
				return wamqp.NewSubscriber(config, logger)
			},
			create: func(_ context.Context, topic string, groups []string) error { return p.create(topic, groups) },
			close:  p.Close,
		}, nil
	}
}

func amqpQueue(group, topic string) string { return group + "@" + topic }

// amqpPublisher is not the plugin's. That one's publication to a topic without queues succeeds, and the message is gone; here it is
// an error, and the relay, for one, tries again. Publish returns when the server has confirmed the message, which is persistent:
// it has it on disk. After a loss the next Publish connects again.
type amqpPublisher struct {
	uri string

	mu       sync.Mutex
	conn     *amqp091.Connection
	idle     []*amqpChannel
	declared map[string]bool
	closed   bool
}

// amqpChannel is used by one Publish at a time: what comes back on it is about that one's message.
type amqpChannel struct {
	*amqp091.Channel
	conn     *amqp091.Connection
	returned chan amqp091.Return
}

// amqpTimeout is how long Publish waits for the server.
const amqpTimeout = 15 * time.Second

func (p *amqpPublisher) Publish(topic string, messages ...*message.Message) error {
	c, err := p.channel()
	if err != nil {
		return err
	}
	if err := p.declare(c, topic); err != nil {
		return errors.Join(err, p.discard(c))
	}
	for _, msg := range messages {
		if err := c.publish(topic, msg); err != nil {
			return errors.Join(fmt.Errorf("message %s: %w", msg.UUID, err), p.discard(c))
		}
	}
	p.keep(c)
	return nil
}

func (c *amqpChannel) publish(topic string, msg *message.Message) error {
	publishing, err := amqpMarshaler{}.Marshal(msg)
	if err != nil {
		return err
	}
	confirmation, err := c.PublishWithDeferredConfirm(topic, "", true, false, publishing)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), amqpTimeout)
	defer cancel()
	acked, err := confirmation.WaitContext(ctx)
	if err != nil {
		return err
	}
	select {
	case <-c.returned: // always before the confirmation
		return errors.New("no group has a queue for this topic yet: see Create")
	default:
	}
	if !acked {
		return errors.New("not confirmed: the server refused it, or the connection was lost")
	}
	return nil
}

// channel gives an idle one, or opens one, on a new connection where the last is gone.
func (p *amqpPublisher) channel() (*amqpChannel, error) { return p.channelWithin(connectStep) }

func (p *amqpPublisher) channelWithin(timeout time.Duration) (*amqpChannel, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.New("the publisher is closed")
	}
	if p.conn == nil || p.conn.IsClosed() {
		conn, err := amqp091.DialConfig(p.uri, amqp091.Config{Heartbeat: 10 * time.Second, Locale: "en_US", Dial: amqp091.DefaultDial(timeout)})
		if err != nil {
			return nil, err
		}
		p.conn, p.idle, p.declared = conn, nil, map[string]bool{}
	}
	for len(p.idle) > 0 {
		c := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if c.conn == p.conn && !c.IsClosed() {
			return c, nil
		}
	}
	channel, err := p.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := channel.Confirm(false); err != nil {
		return nil, errors.Join(err, channel.Close())
	}
	return &amqpChannel{channel, p.conn, channel.NotifyReturn(make(chan amqp091.Return, 1))}, nil
}

func (p *amqpPublisher) keep(c *amqpChannel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, c)
}

func (p *amqpPublisher) discard(c *amqpChannel) error {
	if c.IsClosed() {
		return nil // by the server, with the error that is being returned
	}
	return c.Close()
}

func (p *amqpPublisher) declare(c *amqpChannel, topic string) error {
	p.mu.Lock()
	declared := p.declared[topic]
	p.mu.Unlock()
	if declared {
		return nil
	}
	if err := c.ExchangeDeclare(topic, "fanout", true, false, false, false, nil); err != nil {
		return err
	}
	p.mu.Lock()
	p.declared[topic] = true
	p.mu.Unlock()
	return nil
}

// create makes the queues of groups as watermill-amqp does.
func (p *amqpPublisher) create(topic string, groups []string) error {
	c, err := p.channel()
	if err != nil {
		return err
	}
	if err := p.declare(c, topic); err != nil {
		return errors.Join(err, p.discard(c))
	}
	for _, group := range groups {
		queue, err := c.QueueDeclare(amqpQueue(group, topic), true, false, false, false, nil)
		if err == nil {
			err = c.QueueBind(queue.Name, "", topic, false, nil)
		}
		if err != nil {
			return errors.Join(err, p.discard(c))
		}
	}
	return p.discard(c)
}

func (p *amqpPublisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.conn == nil || p.conn.IsClosed() {
		return nil
	}
	return p.conn.Close()
}

// amqpMarshaler is the plugin's, but that it decodes every message: after an error the plugin gives the message back, and gets it
// again at once, for ever. Headers that are not text, which other producers and RabbitMQ itself have, become text.
type amqpMarshaler struct{ wamqp.DefaultMarshaler }

func (m amqpMarshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	if delivery.Acknowledger == nil {
		return nil, errors.New("not a message: the connection is gone") // the plugin takes the end of its channel for one
	}
	msg := message.NewMessage("", delivery.Body)
	for name, value := range delivery.Headers {
		text, ok := value.(string)
		if !ok {
			text = fmt.Sprint(value)
		}
		if name == wamqp.DefaultMessageUUIDHeaderKey {
			msg.UUID = text
		} else {
			msg.Metadata.Set(name, text)
		}
	}
	return msg, nil
}
