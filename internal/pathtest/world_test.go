package pathtest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-once/watermill-once/_examples/broker"
	"github.com/watermill-once/watermill-once/internal/pgtest"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(childConfig); config != "" {
		childMain(config)
		return
	}
	pgtest.Main(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")) // sarama's, for the life of the program
}

const (
	eventsTopic = "events"
	outTopic    = "out"
	poisonTopic = "poison"
)

// The two consumers of a service: the ledger applies every event, the state only those that are newer than what it has.
var consumers = []string{"ledger", "state"}

// Nothing in these tables keeps an event from having two effects: that is for the product to do.
const tables = `
create table effects (
  consumer text not null,
  event_id text not null,
  entity   text not null,
  version  bigint not null,
  n        bigint not null, -- counts the effects of a consumer on an entity, in the order of their commits
  uuid     text not null    -- of the message that this effect has produced
);
create table counters (
  consumer text,
  entity   text,
  n        bigint not null,
  primary key (consumer, entity)
);`

// event is one as its producer knows it.
type event struct {
	ID      string `json:"id"`
	Entity  string `json:"entity"`
	Version int64  `json:"version"`
}

// world is what surrounds the services of one test: a broker, PostgreSQL, and what was sent.
type world struct {
	*Kafka         // nil: another broker
	address string // of that, or of this one where it is used with the settings of _examples/broker
	broker  *broker.Broker
	prefix  string // of topics and groups

	out       *collector // of what comes out, where it is not read from Kafka
	poisoned  *collector
	url       string
	pool      *pgxpool.Pool
	publisher message.Publisher
	sent      map[string]event // the distinct events
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newKafkaWorld(t, StartKafka(t, eventsTopic, outTopic, poisonTopic))
}

// newKafkaWorld is over a Kafka that has the topics.
func newKafkaWorld(t *testing.T, kafka *Kafka) *world {
	t.Helper()
	publisher, err := NewPublisher(kafka.Brokers(), watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	w := &world{Kafka: kafka, publisher: publisher, sent: map[string]event{}}
	w.openDatabase(t)
	return w
}

func (w *world) openDatabase(t *testing.T) {
	t.Helper()
	w.url = pgtest.FromTemplate(t, "pathtest", func(ctx context.Context, conn *pgx.Conn) error {
		pool, err := pgxpool.New(ctx, conn.Config().ConnString())
		if err != nil {
			return err
		}
		defer pool.Close()
		if err := once.InitializeSchema(ctx, once.Pgx(pool)); err != nil {
			return err
		}
		_, err = pool.Exec(ctx, tables)
		return err
	})
	w.pool = pgtest.PoolOn(t, w.url)
}

// send publishes events as a producer does that repeats itself: in order, on the partition of their entity.
func (w *world) send(t *testing.T, events ...event) {
	t.Helper()
	for _, e := range events {
		w.sendAs(t, e, e.Entity)
	}
}

func (w *world) sendAs(t *testing.T, e event, partitionKey string) {
	t.Helper()
	payload, err := json.Marshal(e)
	require.NoError(t, err)
	msg := message.NewMessage(e.ID, payload)
	msg.Metadata.Set(outbox.PartitionKeyKey, partitionKey)
	require.NoError(t, w.publisher.Publish(w.prefix+eventsTopic, msg))
	w.sent[e.ID] = e
}

// history makes the events of some entities, each with versions from 1 up.
func history(prefix string, entities, versions int) []event {
	var events []event
	for version := range versions {
		for entity := range entities {
			name := fmt.Sprintf("%s-%d", prefix, entity)
			events = append(events, event{fmt.Sprintf("%s.%d", name, version+1), name, int64(version + 1)})
		}
	}
	return events
}

// mixed gives the events somewhat out of order, and some of them two or three times.
func mixed(t *testing.T, events []event) []event {
	random := seeded(t)
	var all []event
	for _, e := range events {
		for range 1 + random.IntN(3) {
			all = append(all, e)
		}
	}
	for i := range all {
		j := min(len(all)-1, i+random.IntN(20))
		all[i], all[j] = all[j], all[i]
	}
	return all
}

// seeded gives chance, and tells how to have the same once more.
func seeded(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// waitFor polls until the query gives true.
func (w *world) waitFor(t *testing.T, query string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Longest)
	defer cancel()
	for {
		var reached bool
		require.NoError(t, w.pool.QueryRow(ctx, query, args...).Scan(&reached), "waiting for %s", query)
		if reached {
			return
		}
		select {
		case <-ctx.Done():
			require.Fail(t, "not reached in time", "%s, %v", query, args)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (w *world) waitForEffects(t *testing.T, n int) {
	t.Helper()
	w.waitFor(t, "select count(*) >= $1 from effects", n)
}

// waitUntilSettled waits until the groups have consumed all that was sent and the relay has nothing left.
func (w *world) waitUntilSettled(t *testing.T) {
	t.Helper()
	for _, group := range consumers {
		w.WaitConsumed(t, w.prefix+group, w.prefix+eventsTopic)
	}
	w.waitFor(t, "select count(*) = 0 from watermill_outbox")
}
