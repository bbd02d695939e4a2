package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
	"github.com/watermill-once/watermill-once/outbox"
)

// broker is where everything ends: it counts, and takes its time for each call.
type broker struct {
	takes time.Duration

	mu      sync.Mutex
	count   int
	enough  int
	reached chan struct{}
	seen    func(*message.Message)
}

// expect forgets the past. The channel closes when n messages have come.
func (b *broker) expect(n int) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count, b.enough, b.reached = 0, n, make(chan struct{})
	return b.reached
}

func (b *broker) Publish(_ string, msgs ...*message.Message) error {
	if b.takes > 0 {
		time.Sleep(b.takes)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, msg := range msgs {
		b.count++
		if b.count == b.enough {
			close(b.reached)
		}
		if b.seen != nil {
			b.seen(msg)
		}
	}
	return nil
}

func (b *broker) Close() error { return nil }

// drain is a way to empty an outbox.
type drain struct {
	name  string
	table string
	run   func(ctx context.Context, b *broker) error
}

const stockTopic = "stock"

// outboxes is a server with an outbox of either kind.
type outboxes struct {
	server *pgserver.Server
	pool   *pgxpool.Pool
	db     *sql.DB
	wake   *outbox.Publisher
}

func openOutboxes(ctx context.Context) (_ *outboxes, err error) {
	o := &outboxes{}
	if o.server, err = pgserver.Start(ctx, pgserver.Config{}); err != nil {
		return nil, err
	}
	if o.pool, err = pgxpool.New(ctx, o.server.URL("postgres")); err != nil {
		return nil, err
	}
	if o.db, err = sql.Open("pgx", o.server.URL("postgres")); err != nil {
		return nil, err
	}
	if o.wake, err = outbox.NewPublisher(outbox.Config{}); err != nil {
		return nil, err
	}
	if err := once.InitializeSchema(ctx, once.Pgx(o.pool)); err != nil {
		return nil, err
	}
	return o, o.stockSubscriber(wsql.SubscriberConfig{}).SubscribeInitialize(stockTopic)
}

func (o *outboxes) close() error {
	o.pool.Close()
	return errors.Join(o.db.Close(), o.server.Close())
}

func (o *outboxes) stockSubscriber(config wsql.SubscriberConfig) *wsql.Subscriber {
	if config.SchemaAdapter == nil {
		config.SchemaAdapter = wsql.DefaultPostgreSQLSchema{}
	}
	config.OffsetsAdapter = wsql.DefaultPostgreSQLOffsetsAdapter{}
	subscriber, err := wsql.NewSubscriber(o.db, config, watermill.NopLogger{})
	if err != nil {
		panic(err) // of a config that stands here
	}
	return subscriber
}

// stock is Watermill's forwarder over watermill-sql on its default schema.
func (o *outboxes) stock(name string, config wsql.SubscriberConfig) drain {
	return drain{name, "watermill_" + stockTopic, func(ctx context.Context, b *broker) error {
		subscriber := o.stockSubscriber(config)
		f, err := forwarder.NewForwarder(subscriber, b, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: stockTopic})
		if err != nil {
			return err
		}
		return errors.Join(f.Run(ctx), subscriber.Close())
	}}
}

func (o *outboxes) stockDefault() drain {
	return o.stock("stock, default settings", wsql.SubscriberConfig{})
}

func (o *outboxes) stockBest() drain {
	return o.stock("stock, batch 1000, poll 10 ms", wsql.SubscriberConfig{
		SchemaAdapter: wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 1000},
		PollInterval:  10 * time.Millisecond,
	})
}

func (o *outboxes) relay() drain {
	return drain{"relay", "watermill_outbox", func(ctx context.Context, b *broker) error {
		relay, err := outbox.NewRelay(o.pool, b, outbox.RelayConfig{Wake: o.wake}, nil)
		if err != nil {
			return err
		}
		return relay.Run(ctx)
	}}
}

// fill puts n messages of 1,000 keys into the outbox that d empties, and leaves nothing else in it.
func (o *outboxes) fill(ctx context.Context, d drain, n int) error {
	const payload = `{"type":"card.updated","status":"active","amount":1250,"currency":"EUR","note":"about as long as events are, to be fair to both sides"}`
	insert := map[string]string{
		"watermill_outbox": `insert into watermill_outbox (uuid, topic, key, payload, metadata)
			select gen_random_uuid()::text, 'mails', 'card-' || i % 1000, $1::bytea, json_build_object('partition_key', 'card-' || i % 1000)
			from generate_series(1, $2::int) i`,
		// As forwarder.NewPublisher over sql.Publisher leaves it.
		"watermill_" + stockTopic: `insert into watermill_` + stockTopic + ` (uuid, payload, metadata, transaction_id)
			select id, json_build_object('destination_topic', 'mails', 'uuid', id, 'payload', translate(encode($1::bytea, 'base64'), E'\n', ''),
				'metadata', json_build_object('partition_key', 'card-' || i % 1000)), '{}', pg_current_xact_id()
			from (select gen_random_uuid()::text as id, i from generate_series(1, $2::int) i) x`,
	}[d.table]
	// Of the stock outbox, the offsets too: it deletes nothing.
	statements := []string{"truncate " + d.table}
	if d.table != "watermill_outbox" {
		statements = append(statements, "truncate watermill_offsets_"+stockTopic)
	}
	for _, statement := range statements {
		if _, err := o.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	if n > 0 {
		if _, err := o.pool.Exec(ctx, insert, []byte(payload), n); err != nil {
			return err
		}
	}
	for _, statement := range []string{"vacuum analyze " + d.table, "checkpoint"} {
		if _, err := o.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// rate fills an outbox with n messages and gives the messages per second at which the first `of` of them leave it.
func (o *outboxes) rate(ctx context.Context, d drain, n, of int, takes time.Duration) (float64, error) {
	if err := o.fill(ctx, d, n); err != nil {
		return 0, err
	}
	b := &broker{takes: takes}
	reached := b.expect(of)
	start := time.Now()
	var took time.Duration
	err := during(ctx, func(ctx context.Context) error { return d.run(ctx, b) }, func() error {
		select {
		case <-reached:
			took = time.Since(start)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", d.name, err)
	}
	return float64(of) / took.Seconds(), nil
}

// during runs f while service runs, and returns when both have ended.
func during(ctx context.Context, service func(context.Context) error, f func() error) error {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- service(ctx) }()
	err := f()
	stop()
	if serviceErr := <-ended; !errors.Is(serviceErr, context.Canceled) {
		err = errors.Join(err, serviceErr)
	}
	return err
}
