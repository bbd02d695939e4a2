package middleware_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// world is one database with all tables, and what a test needs to look at it.
type world struct {
	t      *testing.T
	driver string
	url    string
	db     once.DB
	pool   *pgxpool.Pool // to look from outside; the handlers' too where db is Pgx
}

const effects = `create table effects (id bigserial primary key, event_id text not null, note text not null default '')`

// eachDB runs f as a subtest over each way to reach the database.
func eachDB(t *testing.T, f func(t *testing.T, w *world)) {
	for _, driver := range []string{"pgx", "sql-pgx", "sql-pq"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			f(t, newWorld(t, driver))
		})
	}
}

func newWorld(t *testing.T, driver string) *world {
	url := pgtest.FromTemplate(t, "middleware", func(ctx context.Context, conn *pgx.Conn) error {
		pool, err := pgxpool.New(ctx, conn.Config().ConnString())
		if err != nil {
			return err
		}
		defer pool.Close()
		if err := once.InitializeSchema(ctx, once.Pgx(pool)); err != nil {
			return err
		}
		_, err = pool.Exec(ctx, effects)
		return err
	})
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	w := &world{t: t, driver: driver, url: url, pool: pool}
	w.db = w.open(url)
	return w
}

// open reaches url by the world's driver.
func (w *world) open(url string) once.DB {
	switch w.driver {
	case "pgx":
		pool, err := pgxpool.New(w.t.Context(), url)
		require.NoError(w.t, err)
		w.t.Cleanup(pool.Close)
		return once.Pgx(pool)
	default:
		name := map[string]string{"sql-pgx": "pgx", "sql-pq": "postgres"}[w.driver]
		db, err := sql.Open(name, url)
		require.NoError(w.t, err)
		w.t.Cleanup(func() { require.NoError(w.t, db.Close()) })
		return once.SQL(db)
	}
}

// consume wraps a handler, with "test" as the consumer where config names none.
func (w *world) consume(config once.Config, h message.HandlerFunc) message.HandlerFunc {
	w.t.Helper()
	if config.Consumer == "" {
		config.Consumer = "test"
	}
	mw, err := once.Transactional(w.db, config)
	require.NoError(w.t, err)
	return mw(h)
}

// deliver hands a message to a handler and requires that it produces nothing to the Router.
func deliver(t testing.TB, h message.HandlerFunc, msg *message.Message) error {
	t.Helper()
	before := msg.Context()
	produced, err := h(msg)
	require.Empty(t, produced)
	require.Equal(t, before, msg.Context(), "the message's context must be its own again")
	return err
}

// exec runs a statement in the handler's transaction, of whichever kind.
func exec(ctx context.Context, query string, args ...any) error {
	if tx, ok := once.PgxTx(ctx); ok {
		_, err := tx.Exec(ctx, query, args...)
		return err
	}
	tx, ok := once.SQLTx(ctx)
	if !ok {
		return errors.New("no transaction on the context")
	}
	_, err := tx.ExecContext(ctx, query, args...)
	return err
}

// apply is the handler of most tests: one row for each event it is called with.
func apply(msg *message.Message) ([]*message.Message, error) {
	return nil, exec(msg.Context(), `insert into effects (event_id) values ($1)`, once.EventID(msg.Context()))
}

func newMessage(uuid string) *message.Message { return message.NewMessage(uuid, []byte(`{}`)) }

func versioned(uuid, entity, version string) *message.Message {
	msg := newMessage(uuid)
	msg.Metadata.Set("entity", entity)
	msg.Metadata.Set("version", version)
	return msg
}

var byMetadata = ordering.Config{Position: ordering.Metadata("entity", "version")}

func newPublisher(t testing.TB) *outbox.Publisher {
	t.Helper()
	p, err := outbox.NewPublisher(outbox.Config{})
	require.NoError(t, err)
	return p
}

// route runs a handler in a Router, behind a gochannel, with "mails" as the topic that it publishes to. The function that
// comes back delivers one message and gives what the middleware returned for it.
func (w *world) route(config once.Config, h message.HandlerFunc) func(*message.Message) error {
	w.t.Helper()
	mw, err := once.Transactional(w.db, config)
	require.NoError(w.t, err)
	return w.routeThrough(mw, config.Outbox, h)
}

// routeThrough is route for any middleware; publisher may be nil.
func (w *world) routeThrough(mw message.HandlerMiddleware, outbox *outbox.Publisher, h message.HandlerFunc) func(*message.Message) error {
	w.t.Helper()
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	require.NoError(w.t, err)
	broker := gochannel.NewGoChannel(gochannel.Config{}, nil)

	results := make(chan error, 1)
	publisher := message.Publisher(outbox)
	if outbox == nil {
		publisher = broker
	}
	handler := router.AddHandler("cards", "events", broker, "mails", publisher, h)
	handler.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			err := deliver(w.t, next, msg)
			results <- err
			return nil, nil // one delivery each: the test redelivers by itself
		}
	}, mw)

	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	w.t.Cleanup(func() {
		require.NoError(w.t, router.Close())
		require.NoError(w.t, <-ended)
	})
	return func(msg *message.Message) error {
		require.NoError(w.t, broker.Publish("events", msg))
		select {
		case err := <-results:
			return err
		case <-time.After(30 * time.Second):
			return errors.New("the message was not handled")
		}
	}
}

func (w *world) count(query string, args ...any) (n int) {
	w.t.Helper()
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), query, args...).Scan(&n))
	return n
}

func (w *world) effects() int { w.t.Helper(); return w.count(`select count(*) from effects`) }
func (w *world) claims() int {
	w.t.Helper()
	return w.count(`select count(*) from watermill_processed_events`)
}
func (w *world) versions() int {
	w.t.Helper()
	return w.count(`select count(*) from watermill_entity_versions`)
}
func (w *world) outbox() int { w.t.Helper(); return w.count(`select count(*) from watermill_outbox`) }

// requireNothing requires that no trace of an attempt is left.
func (w *world) requireNothing() {
	w.t.Helper()
	require.Zero(w.t, w.effects()+w.claims()+w.versions()+w.outbox())
}

// idle requires that all connections of the database came back with no transaction open.
func (w *world) idle() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		return w.count(`select count(*) from pg_stat_activity
			where datname = current_database() and state like 'idle in transaction%'`) == 0
	}, 10*time.Second, 10*time.Millisecond)
}

// recorder collects outcomes.
type recorder struct{ outcomes []once.Outcome }

func (r *recorder) record(_ context.Context, o once.Outcome) { r.outcomes = append(r.outcomes, o) }
