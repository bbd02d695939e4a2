package pathtest

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/watermill-once/watermill-once/_examples/broker"
	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

// service is one process of a service: its consumers, its relay, or both. It is JSON so that a child process can be one.
type service struct {
	Brokers   []string // of a Kafka, with settings that make things happen soon
	Broker    string   // or the URL of any broker, with the settings of _examples/broker
	Prefix    string   // of topics and groups
	URL       string   // of the database
	Consumers []string
	Relay     bool
	JSONKey   bool  // the event id is in the payload, and not the message's UUID
	Crash     crash // where a child stops, to be killed there

	shared  *broker.Broker                   // or one that is open already
	atCrash func()                           // called there; nil: no such place
	around  message.HandlerMiddleware        // inside the transaction; nil: nothing
	outcome func(outcome once.Outcome)       // told of each; nil: nobody
	running func()                           // told when the consumers have subscribed; nil: nobody
	sending func(publish func() error) error // what the relay's Publish does; nil: publish
}

// crash is a place on the path, and how often it is passed before the process stops there.
type crash struct {
	Point string
	After int
}

const (
	afterWork   = "when the handler has done its work"
	afterCommit = "when the COMMIT has been answered"
	beforeSend  = "when the relay is about to send a message"
	afterSend   = "when the broker has taken a message of the outbox"
)

// service gives one with everything on, for the world.
func (w *world) service() service {
	s := service{Broker: w.address, Prefix: w.prefix, URL: w.url, Consumers: consumers, Relay: true}
	if w.address == "" {
		s.Brokers = w.Brokers()
	}
	if strings.HasPrefix(w.address, "gochannel") {
		s.shared = w.broker // there is no other way to it
	}
	return s
}

// run runs until the context ends.
func (s service) run(ctx context.Context) (err error) {
	logger := watermill.NopLogger{}
	pool, err := pgxpool.New(ctx, s.URL)
	if err != nil {
		return err
	}
	defer pool.Close()
	b, err := s.connect(ctx, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	publisher, err := outbox.NewPublisher(outbox.Config{})
	if err != nil {
		return err
	}

	group, ctx := errgroup.WithContext(ctx)
	if s.Relay {
		relay, err := outbox.NewRelay(pool, s.relayBroker(b.publisher), outbox.RelayConfig{Wake: publisher, PollInterval: 10 * time.Millisecond}, logger)
		if err != nil {
			return err
		}
		group.Go(func() error { return relay.Run(ctx) })
	}
	if len(s.Consumers) > 0 {
		router, err := s.router(pool, b, publisher, logger)
		if err != nil {
			return err
		}
		group.Go(func() error { return router.Run(ctx) })
		if s.running != nil {
			group.Go(func() error {
				select {
				case <-router.Running():
					s.running()
				case <-ctx.Done():
				}
				return nil
			})
		}
	}
	return group.Wait()
}

// connection is what a service has of its broker.
type connection struct {
	publisher  message.Publisher
	subscriber func(group string) (message.Subscriber, error)
	close      func() error
}

func (s service) connect(ctx context.Context, logger watermill.LoggerAdapter) (connection, error) {
	if s.shared != nil {
		return connection{s.shared.Publisher, s.shared.Subscriber, func() error { return nil }}, nil
	}
	if s.Broker != "" {
		b, err := broker.Open(ctx, s.Broker, logger)
		if err != nil {
			return connection{}, err
		}
		return connection{b.Publisher, b.Subscriber, b.Close}, nil
	}
	publisher, err := NewPublisher(s.Brokers, logger)
	if err != nil {
		return connection{}, err
	}
	subscriber := func(group string) (message.Subscriber, error) { return NewSubscriber(s.Brokers, group, logger) }
	return connection{publisher, subscriber, publisher.Close}, nil
}

func (s service) router(pool *pgxpool.Pool, b connection, publisher *outbox.Publisher, logger watermill.LoggerAdapter) (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: Longest}, logger)
	if err != nil {
		return nil, err
	}
	poison, err := wmiddleware.PoisonQueueWithFilter(b.publisher, s.Prefix+poisonTopic, once.ShouldPoison)
	if err != nil {
		return nil, err
	}
	retry := wmiddleware.Retry{MaxRetries: 3, InitialInterval: time.Millisecond, ShouldRetry: once.ShouldRetry}
	router.AddMiddleware(poison, retry.Middleware, wmiddleware.Recoverer)

	for _, consumer := range s.Consumers {
		config := once.Config{Consumer: consumer, Outbox: publisher, OnOutcome: s.onOutcome}
		if consumer == "state" {
			config.Ordering.Position = ordering.JSONFields("entity", "version")
		}
		if s.JSONKey {
			config.Dedupe.Key = dedupe.JSONField("id")
		}
		transactional, err := once.Transactional(once.Pgx(pool), config)
		if err != nil {
			return nil, err
		}
		subscriber, err := b.subscriber(s.Prefix + consumer)
		if err != nil {
			return nil, err
		}
		handler := router.AddHandler(consumer, s.Prefix+eventsTopic, subscriber, s.Prefix+outTopic, publisher, s.handler(consumer))
		handler.AddMiddleware(transactional)
		if s.around != nil {
			handler.AddMiddleware(s.around)
		}
	}
	return router, nil
}

// Counting locks the counter until COMMIT, so that n tells the order of commits.
const count = `
insert into counters (consumer, entity, n)
values ($1, $2, 1)
on conflict (consumer, entity) do update
set n = counters.n + 1
returning n`

const insertEffect = `
insert into effects (consumer, event_id, entity, version, n, uuid)
values ($1, $2, $3, $4, $5, $6)`

func (s service) handler(consumer string) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		var e event
		if err := json.Unmarshal(msg.Payload, &e); err != nil {
			return nil, once.Permanent(err)
		}
		tx, _ := once.PgxTx(ctx)
		uuid, _ := once.DeriveUUID(ctx, "out")
		done := effect{Consumer: consumer, EventID: once.EventID(ctx), Entity: e.Entity, Version: e.Version, UUID: uuid}
		if err := tx.QueryRow(ctx, count, consumer, e.Entity).Scan(&done.N); err != nil {
			return nil, err
		}
		_, err := tx.Exec(ctx, insertEffect, done.Consumer, done.EventID, done.Entity, done.Version, done.N, done.UUID)
		if err != nil {
			return nil, err
		}
		payload, err := json.Marshal(done)
		if err != nil {
			return nil, err
		}
		out := message.NewMessage(uuid, payload)
		out.Metadata.Set(outbox.PartitionKeyKey, done.key())
		s.reach(afterWork)
		return []*message.Message{out}, nil
	}
}

func (s service) onOutcome(_ context.Context, o once.Outcome) {
	if s.outcome != nil {
		s.outcome(o)
	}
	if o.Kind == once.Fresh {
		s.reach(afterCommit)
	}
}

// relayBroker gives the broker itself, which may take batches, where nothing is to happen on the way to it.
func (s service) relayBroker(publisher message.Publisher) message.Publisher {
	if s.Crash.Point == "" && s.sending == nil {
		return publisher
	}
	return relayBroker{publisher, s}
}

// relayBroker is the broker as the relay has it.
type relayBroker struct {
	message.Publisher
	service service
}

func (b relayBroker) Publish(topic string, messages ...*message.Message) error {
	b.service.reach(beforeSend)
	publish := func() error { return b.Publisher.Publish(topic, messages...) }
	var err error
	if b.service.sending != nil {
		err = b.service.sending(publish)
	} else {
		err = publish()
	}
	if err == nil {
		b.service.reach(afterSend)
	}
	return err
}

func (s service) reach(point string) {
	if s.atCrash != nil && s.Crash.Point == point {
		s.atCrash()
	}
}

// start runs a service until stop is called, at the latest at the end of the test. It returns when the consumers have subscribed.
func start(t *testing.T, s service) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	running := make(chan struct{})
	s.running = func() { close(running) }
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(t, <-ended)
		})
	}
	t.Cleanup(stop)
	if len(s.Consumers) > 0 {
		select {
		case <-running:
		case err := <-ended:
			ended <- err
			require.NoError(t, err)
		}
	}
	return stop
}
