package broker

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// postgresOptions are those of the connection, which pgx reads.
var postgresOptions = []string{
	"host", "port", "user", "password", "dbname", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslpassword", "sslsni", "connect_timeout",
	"target_session_attrs", "application_name", "search_path", "timezone", "options", "default_query_exec_mode",
}

// postgres is watermill-sql: a table for each topic and one for its groups' positions. It may be the database that the handlers
// write to, and need not be: the middleware's transactions are others than the subscriber's.
func postgres(a *address) opener {
	// A batch is one transaction, open until its last message is handled. It holds up, besides a vacuum, every reader of this
	// plugin on the same server, whatever its topic, since they read no further than the oldest transaction that is open. So: one.
	// After a crash, what was handled of the batch comes again.
	batch := a.number("batch", 1, 1, 10_000)

	// The time for one message, retries included. At its end the message's context ends and it is delivered again, so it is to be
	// longer than handlers need. Without such a bound, one handler that hangs holds up all readers for ever, as above.
	deadline := a.duration("ack_wait", ackWait, time.Second)

	// How long a message waits on a topic that was empty. Each reader asks this often.
	poll := a.duration("poll", 100*time.Millisecond, time.Millisecond)

	for _, name := range postgresOptions {
		a.option(name)
	}
	if len(a.hosts) == 0 && a.options.Get("host") == "" {
		a.fault("no host: use postgres://host:5432/database, or host=... for a socket's directory")
	}
	config, err := pgx.ParseConfig(a.postgresURL("batch", "ack_wait", "poll"))
	if err != nil && len(a.faults) == 0 {
		a.fault("%w", err)
	}
	return func(ctx context.Context, logger watermill.LoggerAdapter) (*Broker, error) {
		db := stdlib.OpenDB(*config)
		// Each subscription holds one while its message is handled.
		db.SetMaxOpenConns(50)
		db.SetMaxIdleConns(10)
		if err := db.PingContext(ctx); err != nil {
			_ = db.Close()
			return nil, err
		}
		schema := postgresSchema{wsql.DefaultPostgreSQLSchema{
			SubscribeBatchSize: batch,
			// The default is a JSON column, which refuses what is no JSON and gives back other bytes than it was given.
			GeneratePayloadType: func(string) string { return "bytea" },
		}}
		plugin, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: schema}, logger)
		if err != nil {
			_ = db.Close()
			return nil, err
		}
		topics := &postgresTopics{db: db, schema: schema}
		return &Broker{
			Publisher: postgresPublisher{plugin, topics},
			subscribe: func(group, topic string) (message.Subscriber, error) {
				if err := topics.create(context.Background(), topic); err != nil {
					return nil, err
				}
				return wsql.NewSubscriber(db, wsql.SubscriberConfig{
					ConsumerGroup:  group,
					SchemaAdapter:  schema,
					OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
					AckDeadline:    &deadline,
					PollInterval:   poll,
					ResendInterval: 100 * time.Millisecond, // after a nack, within the deadline
				}, logger)
			},
			create: func(ctx context.Context, topic string, _ []string) error { return topics.create(ctx, topic) },
			close:  db.Close,
		}, nil
	}
}

// postgresURL is the address without the options that are ours.
func (a *address) postgresURL(ours ...string) string {
	head, query, found := strings.Cut(a.text, "?")
	if !found {
		return head
	}
	theirs := slices.DeleteFunc(strings.Split(query, "&"), func(option string) bool {
		name, _, _ := strings.Cut(option, "=")
		return slices.Contains(ours, name)
	})
	return head + "?" + strings.Join(theirs, "&")
}

// postgresSchema is watermill-sql's, with ids of any length: an event's id need not be a UUID.
type postgresSchema struct{ wsql.DefaultPostgreSQLSchema }

func (s postgresSchema) SchemaInitializingQueries(topic string) []wsql.Query {
	queries := s.DefaultPostgreSQLSchema.SchemaInitializingQueries(topic)
	for i := range queries {
		queries[i].Query = strings.Replace(queries[i].Query, "VARCHAR(36)", "TEXT", 1)
	}
	return queries
}

// postgresTopics makes the tables.
type postgresTopics struct {
	db     *sql.DB
	schema wsql.SchemaAdapter
	made   sync.Map
}

// create takes a lock, for "create table if not exists" fails where two do it at the same time.
func (t *postgresTopics) create(ctx context.Context, topic string) error {
	if _, made := t.made.Load(topic); made {
		return nil
	}
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, "select pg_advisory_xact_lock(hashtext('watermill-sql topics'))"); err != nil {
		return err
	}
	for _, query := range slices.Concat(t.schema.SchemaInitializingQueries(topic), wsql.DefaultPostgreSQLOffsetsAdapter{}.SchemaInitializingQueries(topic)) {
		if _, err := tx.ExecContext(ctx, query.Query, query.Args...); err != nil {
			return fmt.Errorf("tables: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	t.made.Store(topic, true)
	return nil
}

type postgresPublisher struct {
	*wsql.Publisher
	topics *postgresTopics
}

func (p postgresPublisher) Publish(topic string, messages ...*message.Message) error {
	if err := p.topics.create(context.Background(), topic); err != nil {
		return err
	}
	return p.Publisher.Publish(topic, messages...)
}
