package broker

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	wnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// nats is JetStream, by package jetstream of watermill-nats: a stream for each topic, a durable consumer for each group. The
// plugin's other package, nats, deletes the consumer it has made, and with it the group's position, when it closes.
func nats(a *address) opener {
	a.noPath()
	n := natsSettings{
		// How long a handler may take for one message, retries included.
		ackWait: a.duration("ack_wait", ackWait, time.Second),
		// How many messages of a group are handled at a time, over all its members. At one, a message that is nacked is the next again:
		// the order stays. With more, what comes after it overtakes it.
		inFlight: a.number("in_flight", 1, 1, 1000),
		// Of streams that Create makes: 3 where there is a cluster.
		replicas: a.number("replicas", 1, 1, 5),
	}
	n.hosts = a.hostPorts("4222")
	n.servers = "nats://" + strings.Join(n.hosts, ",nats://")
	if a.user != nil {
		n.options = append(n.options, natsgo.UserInfo(a.user.Username(), a.password()))
	}
	if a.boolean("tls") {
		n.options = append(n.options, natsgo.Secure())
	}
	return n.open
}

type natsSettings struct {
	hosts    []string
	servers  string // the same, as URLs
	options  []natsgo.Option
	ackWait  time.Duration
	inFlight int
	replicas int
}

func (n natsSettings) open(ctx context.Context, logger watermill.LoggerAdapter) (*Broker, error) {
	if err := reach(ctx, n.hosts...); err != nil {
		return nil, err
	}
	conn, err := within(ctx, func() (*natsgo.Conn, error) { return n.connect(left(ctx)) }, (*natsgo.Conn).Close)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err == nil {
		_, err = js.AccountInfo(ctx) // is JetStream on?
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	plugin, err := wjetstream.NewPublisher(wjetstream.PublisherConfig{Conn: conn, Logger: logger, ConfigureStream: n.stream})
	if err != nil {
		conn.Close()
		return nil, err
	}
	streams := &natsStreams{settings: n, js: js}
	return &Broker{
		Publisher: natsPublisher{plugin, streams},
		subscribe: func(group, _ string) (message.Subscriber, error) { return n.subscriber(group, streams, logger) },
		create: func(ctx context.Context, topic string, groups []string) error {
			if err := streams.create(ctx, topic); err != nil {
				return err
			}
			for _, group := range groups {
				if _, err := n.consumer(ctx, js, group, topic); err != nil {
					return err
				}
			}
			return nil
		},
		close: func() error {
			conn.Close()
			return nil
		},
	}, nil
}

func (n natsSettings) connect(timeout time.Duration) (*natsgo.Conn, error) {
	return natsgo.Connect(n.servers, append([]natsgo.Option{
		natsgo.Timeout(timeout),
		natsgo.MaxReconnects(-1), // by default it gives up after two minutes, and says nothing to the subscriber
		natsgo.ReconnectWait(500 * time.Millisecond),
		// By default a publication is buffered while there is no connection: its error comes as a timeout.
		natsgo.ReconnectBufSize(-1),
	}, n.options...)...)
}

// name is that of a stream and its subject. JetStream takes no dots and the like in the name of a stream or a consumer.
func (natsSettings) name(text string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(".*>/\\", r) || r <= ' ' {
			return '_'
		}
		return r
	}, text)
}

func (n natsSettings) stream(topic string) jetstream.StreamConfig {
	name := n.name(topic)
	return jetstream.StreamConfig{
		Name:     name,
		Subjects: []string{name},
		Storage:  jetstream.FileStorage,
		Replicas: n.replicas,
		// Limits, of which none is set: messages stay, for groups that are new. Set MaxAge on the stream to have them go.
		Retention: jetstream.LimitsPolicy,
	}
}

// lease is how long the server waits for a consumer that says nothing. While a message is handled its consumer says so; so the
// message that a killed one had comes again soon, and not after the whole of ackWait.
func (n natsSettings) lease() time.Duration { return min(n.ackWait, 10*time.Second) }

func (n natsSettings) consumer(ctx context.Context, js jetstream.JetStream, group, topic string) (jetstream.Consumer, error) {
	return js.CreateOrUpdateConsumer(ctx, n.name(topic), jetstream.ConsumerConfig{
		Durable:       n.name(group), // outlives its members, with the group's position
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       n.lease(),
		MaxAckPending: n.inFlight,
		MaxDeliver:    -1, // an outage may last
	})
}

// natsStreams makes streams that are not there.
type natsStreams struct {
	settings natsSettings
	js       jetstream.JetStream
	made     sync.Map
}

func (s *natsStreams) create(ctx context.Context, topic string) error {
	if _, made := s.made.Load(topic); made {
		return nil
	}
	_, err := s.js.Stream(ctx, s.settings.name(topic))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = s.js.CreateStream(ctx, s.settings.stream(topic))
	}
	if err == nil {
		s.made.Store(topic, true)
	}
	return err
}

// natsTimeout bounds what has no context.
const natsTimeout = 10 * time.Second

type natsPublisher struct {
	*wjetstream.Publisher
	streams *natsStreams
}

func (p natsPublisher) Publish(topic string, messages ...*message.Message) error {
	ctx, cancel := context.WithTimeout(context.Background(), natsTimeout)
	defer cancel()
	if err := p.streams.create(ctx, topic); err != nil {
		return err
	}
	return p.Publisher.Publish(topic, messages...)
}

func (n natsSettings) subscriber(group string, streams *natsStreams, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	conn, err := n.connect(connectStep) // its own: the plugin closes it
	if err != nil {
		return nil, err
	}
	s := &natsSubscriber{}
	s.Subscriber, err = wjetstream.NewSubscriber(wjetstream.SubscriberConfig{
		Conn:           conn,
		Logger:         logger,
		AckWaitTimeout: n.ackWait,
		NakDelay:       wjetstream.NewStaticDelay(100 * time.Millisecond),
		Unmarshaler:    natsUnmarshaler{},
		// One at a time: those that waited here would use up their ack wait.
		ConsumeOptions: []jetstream.PullConsumeOpt{jetstream.PullMaxMessages(1)},
		ResourceInitializer: func(ctx context.Context, js jetstream.JetStream, topic string) (
			jetstream.Consumer, func(context.Context, watermill.LoggerAdapter), error,
		) {
			ctx, cancel := context.WithTimeout(ctx, natsTimeout)
			defer cancel()
			if err := streams.create(ctx, topic); err != nil {
				return nil, nil, err
			}
			consumer, err := n.consumer(ctx, js, group, topic)
			return natsConsumer{consumer, s, n.lease() / 3}, nil, err
		},
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	return s, nil
}

// natsSubscriber is the plugin's, and knows that it is being closed.
type natsSubscriber struct {
	*wjetstream.Subscriber
	closing atomic.Bool
}

func (s *natsSubscriber) Close() error {
	s.closing.Store(true)
	return s.Subscriber.Close()
}

// natsConsumer tells the server that a message is being handled, and gives it back where the plugin, as it closes, only drops it.
type natsConsumer struct {
	jetstream.Consumer
	subscriber *natsSubscriber
	every      time.Duration
}

func (c natsConsumer) Consume(handle jetstream.MessageHandler, options ...jetstream.PullConsumeOpt) (jetstream.ConsumeContext, error) {
	return c.Consumer.Consume(func(msg jetstream.Msg) { c.deliver(msg, handle) }, options...)
}

func (c natsConsumer) deliver(msg jetstream.Msg, handle jetstream.MessageHandler) {
	handled := make(chan struct{})
	var saying sync.WaitGroup
	saying.Go(func() {
		ticker := time.NewTicker(c.every)
		defer ticker.Stop()
		for {
			select {
			case <-handled:
				return
			case <-ticker.C:
				_ = msg.InProgress()
			}
		}
	})
	defer func() {
		close(handled)
		saying.Wait()
		if c.subscriber.closing.Load() {
			// The plugin closes its channel without a look at whether a message is on its way into it.
			_ = recover()
			_ = msg.Nak() // refused where it has been acked
		}
	}()
	handle(msg)
}

// natsUnmarshaler never fails: after an error the plugin panics.
type natsUnmarshaler struct{}

func (natsUnmarshaler) Unmarshal(m jetstream.Msg) (*message.Message, error) {
	msg := message.NewMessage(m.Headers().Get(wnats.WatermillUUIDHdr), m.Data())
	for name, values := range m.Headers() {
		// Of several values, which Watermill does not send, all are kept.
		if name != wnats.WatermillUUIDHdr {
			msg.Metadata.Set(name, strings.Join(values, ","))
		}
	}
	return msg, nil
}
