package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/attempt"
	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

// patience is how long nothing at all may happen before a test gives up. What a slow machine needs for much is not limited.
const patience = time.Minute

// newDatabase gives a database with the default outbox and the outbox "second".
func newDatabase(t testing.TB) string {
	t.Helper()
	return pgtest.FromTemplate(t, "outbox", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, outbox.Config{}.Schema()+outbox.Config{Topic: "second"}.Schema())
		return err
	})
}

func newPool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return pgtest.PoolOn(t, newDatabase(t))
}

func newPublisher(t testing.TB, config outbox.Config) *outbox.Publisher {
	t.Helper()
	p, err := outbox.NewPublisher(config)
	require.NoError(t, err)
	return p
}

func newMessage(key, payload string) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
	if key != "" {
		msg.Metadata.Set(outbox.PartitionKeyKey, key)
	}
	return msg
}

// numbered gives messages whose payload is their number, with keys in turn.
func numbered(count, keys int) []*message.Message {
	msgs := make([]*message.Message, count)
	for i := range msgs {
		msgs[i] = newMessage(fmt.Sprintf("key-%d", i%keys), strconv.Itoa(i))
	}
	return msgs
}

// begin opens a transaction that does not outlive the test.
func begin(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// inTx commits what run does.
func inTx(t testing.TB, pool *pgxpool.Pool, run func(tx pgx.Tx)) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		run(tx)
		return nil
	}))
}

// handle runs a handler as the middleware does: what it publishes on the context is written with the COMMIT.
func handle(t testing.TB, pool *pgxpool.Pool, headers map[string]string, handler func(ctx context.Context)) {
	t.Helper()
	a := &attempt.Attempt{Headers: headers}
	handler(attempt.NewContext(t.Context(), a))
	_, rows, _ := a.End()
	inTx(t, pool, func(tx pgx.Tx) { flush(t, tx, rows) })
	for _, row := range rows {
		row.Wake()
	}
}

func flush(t testing.TB, tx pgx.Tx, rows []attempt.Row) {
	t.Helper()
	var batch pgx.Batch
	for _, s := range attempt.Insert(rows) {
		batch.Queue(s.SQL, s.Args...)
	}
	require.NoError(t, tx.SendBatch(t.Context(), &batch).Close())
}

// stored is a row as the table has it.
type stored struct {
	Offset                     int64
	Topic, Key, UUID, Metadata string
	Payload                    []byte
}

func contents(t testing.TB, pool *pgxpool.Pool, config outbox.Config) []stored {
	t.Helper()
	rows, err := pool.Query(t.Context(), `select "offset", topic, key, uuid, metadata::text, payload from `+config.Table()+` order by "offset"`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stored])
	require.NoError(t, err)
	return all
}

func requireEmpty(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	require.Empty(t, contents(t, pool, outbox.Config{}))
}

// sent is what a broker was given.
type sent struct {
	Topic, UUID, Payload string
	Metadata             message.Metadata
}

func (s sent) key() string { return s.Metadata[outbox.PartitionKeyKey] }

// broker keeps what it is given, and refuses what refuse says.
type broker struct {
	refuse func(topic string, msg *message.Message) error

	mu      sync.Mutex
	got     []sent
	changed chan struct{}
}

func newBroker() *broker { return &broker{changed: make(chan struct{})} }

func (b *broker) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		if b.refuse != nil {
			if err := b.refuse(topic, msg); err != nil {
				return err
			}
		}
		b.mu.Lock()
		b.got = append(b.got, sent{topic, msg.UUID, string(msg.Payload), maps.Clone(msg.Metadata)})
		close(b.changed)
		b.changed = make(chan struct{})
		b.mu.Unlock()
	}
	return nil
}

func (b *broker) Close() error { return nil }

func (b *broker) all() []sent {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got)
}

// wait waits until the broker has count messages, as long as more come, and gives them.
func (b *broker) wait(t testing.TB, count int) []sent {
	t.Helper()
	for {
		b.mu.Lock()
		got, changed := slices.Clone(b.got), b.changed
		b.mu.Unlock()
		if len(got) >= count {
			return got
		}
		select {
		case <-changed:
		case <-time.After(patience):
			require.FailNow(t, "no more messages come to the broker", "%d of %d", len(got), count)
		}
	}
}

// startRelay runs a relay until stop is called or the test ends, and requires that it ends well.
func startRelay(t testing.TB, pool *pgxpool.Pool, b message.Publisher, config outbox.RelayConfig) (stop func()) {
	t.Helper()
	return startRelayThatLogs(t, pool, b, config, watermill.NopLogger{})
}

// startRelayThatLogs is that, with a logger.
func startRelayThatLogs(
	t testing.TB, pool *pgxpool.Pool, b message.Publisher, config outbox.RelayConfig, log watermill.LoggerAdapter,
) (stop func()) {
	t.Helper()
	if config.PollInterval == 0 {
		config.PollInterval = 10 * time.Millisecond
	}
	relay, err := outbox.NewRelay(pool, b, config, log)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(patience):
			require.FailNow(t, "the relay did not end")
		}
	})
	t.Cleanup(stop)
	return stop
}

// eventually waits for what no signal tells.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, patience, 5*time.Millisecond, what)
}

func payloads(all []sent) []string {
	texts := make([]string, len(all))
	for i := range all {
		texts[i] = all[i].Payload
	}
	return texts
}

func decode(t testing.TB, metadata string) map[string]string {
	t.Helper()
	var decoded map[string]string
	require.NoError(t, json.Unmarshal([]byte(metadata), &decoded))
	return decoded
}
