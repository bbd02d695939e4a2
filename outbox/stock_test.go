package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

func newDB(t testing.TB, pool *pgxpool.Pool) *sql.DB {
	t.Helper()
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func newSubscriber(t testing.TB, db *sql.DB, group string) *wsql.Subscriber {
	t.Helper()
	s, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
		ConsumerGroup:    group,
		PollInterval:     5 * time.Millisecond,
		ResendInterval:   time.Millisecond,
		RetryInterval:    5 * time.Millisecond,
		SchemaAdapter:    outbox.SchemaAdapter{BatchSize: 20},
		OffsetsAdapter:   outbox.OffsetsAdapter{},
		InitializeSchema: true,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	return s
}

// startForwarder runs the stock forwarder over the stock Subscriber on an outbox.
func startForwarder(t testing.TB, db *sql.DB, group string, b message.Publisher) (stop func()) {
	t.Helper()
	f, err := forwarder.NewForwarder(newSubscriber(t, db, group), b, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: "outbox"})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- f.Run(context.Background()) }()
	<-f.Running()
	stop = sync.OnceFunc(func() {
		require.NoError(t, f.Close()) // closes the Subscriber
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

func TestTheStockForwarderDrainsWhatOurPublisherWrote(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t) // the Subscriber makes the table
	db := newDB(t, pool)
	p := newPublisher(t, outbox.Config{})
	b := newBroker()
	stop := startForwarder(t, db, "", b)

	msgs := difficult(250)
	for i := 0; i < len(msgs); i += 50 {
		inTx(t, pool, func(tx pgx.Tx) { require.NoError(t, p.PublishTx(t.Context(), tx, "it's a {topic}", msgs[i:i+50]...)) })
	}
	requireSent(t, msgs, b.wait(t, len(msgs)))
	eventually(t, "forwarded rows are deleted", func() bool { return len(contents(t, pool, outbox.Config{})) == 0 })
	stop()
	require.Len(t, b.all(), len(msgs))
}

func requireSent(t testing.TB, msgs []*message.Message, got []sent) {
	t.Helper()
	require.Len(t, got, len(msgs))
	for i, msg := range msgs {
		require.Equal(t, "it's a {topic}", got[i].Topic)
		require.Equal(t, msg.UUID, got[i].UUID)
		require.Equal(t, string(msg.Payload), got[i].Payload)
		delete(got[i].Metadata, outbox.SequenceKey)
		require.Equal(t, len(msg.Metadata), len(got[i].Metadata))
		for key, value := range msg.Metadata {
			require.Equal(t, value, got[i].Metadata[key])
		}
	}
}

func TestOurRelaySendsWhatTheStockPublisherWrote(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	db := newDB(t, pool)
	stock, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: outbox.SchemaAdapter{}, AutoInitializeSchema: true}, watermill.NopLogger{})
	require.NoError(t, err)
	p := forwarder.NewPublisher(stock, forwarder.PublisherConfig{ForwarderTopic: "outbox"})

	msgs := difficult(120)
	require.NoError(t, p.Publish("it's a {topic}", msgs[0]))
	require.NoError(t, p.Publish("it's a {topic}", msgs[1:]...))
	for i, row := range contents(t, pool, outbox.Config{}) {
		want, _ := outbox.PartitionKey("", msgs[i])
		require.Equal(t, want, row.Key)
	}
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{Concurrency: 1})
	requireSent(t, msgs, b.wait(t, len(msgs)))
	require.NoError(t, p.Close())
}

func TestTheStockPublisherOnATransaction(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	db := newDB(t, pool)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	stock, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: outbox.SchemaAdapter{
		Key: func(topic string, msg *message.Message) (string, error) { return topic + string(msg.Payload), nil },
	}}, watermill.NopLogger{})
	require.NoError(t, err)
	p := forwarder.NewPublisher(stock, forwarder.PublisherConfig{ForwarderTopic: "outbox"})

	require.NoError(t, p.Publish("topic"), "no messages")
	require.NoError(t, p.Publish("topic", newMessage("", "1")))
	require.NoError(t, p.Publish("topic", newMessage("", "2"), newMessage("", "3")))
	require.NoError(t, tx.Commit())
	rows := contents(t, pool, outbox.Config{})
	require.Len(t, rows, 3)
	require.Equal(t, "topic3", rows[2].Key)
}

func TestTheStockPublisherIsGivenClearErrors(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	stock, err := wsql.NewPublisher(newDB(t, pool), wsql.PublisherConfig{SchemaAdapter: outbox.SchemaAdapter{}}, watermill.NopLogger{})
	require.NoError(t, err)
	p := forwarder.NewPublisher(stock, forwarder.PublisherConfig{ForwarderTopic: "outbox"})

	require.ErrorIs(t, stock.Publish("outbox", newMessage("", "not enveloped")), outbox.ErrInvalidMessage)
	err = p.Publish("topic", newMessage("", ""), message.NewMessage("", nil))
	require.ErrorIs(t, err, outbox.ErrInvalidMessage)
	require.ErrorContains(t, err, "UUID is empty")
	requireEmpty(t, pool)
}

func TestSchemaAndOffsetsAdapterGoTogether(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	// Another offsets adapter would send everything again for ever.
	query := outbox.SchemaAdapter{}.SelectQuery("outbox", "", wsql.DefaultPostgreSQLOffsetsAdapter{})
	_, err := pool.Exec(t.Context(), query.Query)
	require.ErrorContains(t, err, "outbox.SchemaAdapter needs outbox.OffsetsAdapter")
	_, err = pool.Exec(t.Context(), outbox.OffsetsAdapter{}.NextOffsetQuery("outbox", "").Query)
	require.ErrorContains(t, err, "outbox.OffsetsAdapter needs outbox.SchemaAdapter")

	type embedded struct{ outbox.OffsetsAdapter }
	_, err = pool.Exec(t.Context(), outbox.SchemaAdapter{}.SelectQuery("outbox", "", embedded{}).Query)
	require.NoError(t, err)
}

func TestANackedMessageIsForwardedAgainInItsPlace(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	var refused atomic.Int32
	b.refuse = func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "7" && refused.Add(1) <= 3 {
			return errors.New("refused")
		}
		return nil
	}
	inTx(t, pool, func(tx pgx.Tx) {
		require.NoError(t, newPublisher(t, outbox.Config{}).PublishTx(t.Context(), tx, "topic", numbered(40, 3)...))
	})
	stop := startForwarder(t, newDB(t, pool), "", b)
	got := b.wait(t, 40)
	for i := range got {
		require.Equal(t, fmt.Sprint(i), got[i].Payload)
	}
	eventually(t, "rows are deleted", func() bool { return len(contents(t, pool, outbox.Config{})) == 0 })
	stop()
	require.EqualValues(t, 4, refused.Load())
}

func TestSeveralStockReadersShareTheWork(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	db := newDB(t, pool)
	p := newPublisher(t, outbox.Config{})
	b := newBroker()
	// Of the same group and of another one: there is one queue.
	stops := []func(){startForwarder(t, db, "", b), startForwarder(t, db, "", b), startForwarder(t, db, "other", b)}
	msgs := numbered(600, 7)
	for i := 0; i < len(msgs); i += 30 {
		inTx(t, pool, func(tx pgx.Tx) { require.NoError(t, p.PublishTx(t.Context(), tx, "topic", msgs[i:i+30]...)) })
	}
	b.wait(t, len(msgs))
	eventually(t, "rows are deleted", func() bool { return len(contents(t, pool, outbox.Config{})) == 0 })
	for _, stop := range stops {
		stop()
	}
	got := b.all()
	require.Len(t, got, len(msgs), "a message was forwarded twice")
	for i := range got {
		require.Equal(t, fmt.Sprint(i), got[i].Payload)
	}
}

// What is committed behind the reader's back with a lower offset must survive its acknowledgement.
func TestAStockReaderDoesNotDeleteWhatItHasNotRead(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	late := begin(t, pool)
	require.NoError(t, p.PublishTx(t.Context(), late, "topic", newMessage("late", "late")))
	inTx(t, pool, func(tx pgx.Tx) {
		require.NoError(t, p.PublishTx(t.Context(), tx, "topic", newMessage("early", "early")))
	})
	_, err := pool.Exec(t.Context(), `insert into watermill_outbox ("offset", uuid, topic, key, parked_at) values (-1, 'u', 't', 'k', now())`)
	require.NoError(t, err)

	b := newBroker()
	b.refuse = func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "early" {
			return late.Commit(t.Context()) // while the reader has its batch in hand
		}
		return nil
	}
	stop := startForwarder(t, newDB(t, pool), "", b)
	require.Equal(t, []string{"early", "late"}, payloads(b.wait(t, 2)))
	eventually(t, "sent rows are deleted", func() bool { return len(contents(t, pool, outbox.Config{})) == 1 })
	stop()
	require.Equal(t, "u", contents(t, pool, outbox.Config{})[0].UUID, "the parked row stays")
}

// The lock may be free and the snapshot older than what the reader before has deleted.
func TestAStockReaderNoticesThatItsSnapshotIsOld(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	db := newDB(t, pool)
	publish(t, pool, numbered(3, 3)...)
	adapter := outbox.SchemaAdapter{}
	late, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: adapter.SubscribeIsolationLevel()})
	require.NoError(t, err)
	_, err = late.Exec(`select 1 from watermill_outbox`) // takes the snapshot
	require.NoError(t, err)

	first, rows := stockRead(t, db)
	require.Equal(t, 3, rows)
	ack := outbox.OffsetsAdapter{}.AckMessageQuery("outbox", wsql.Row{Offset: 3}, "")
	_, err = first.Exec(ack.Query, ack.Args...)
	require.NoError(t, err)
	require.NoError(t, first.Commit())

	var offset int64
	err = late.QueryRow(adapter.SelectQuery("outbox", "", outbox.OffsetsAdapter{}).Query).Scan(&offset, new(any), new(any), new(any), new(any))
	require.ErrorContains(t, err, "40001")
	require.NoError(t, late.Rollback())
}

func TestRelayAndStockReaderExcludeEachOther(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	db := newDB(t, pool)
	p := newPublisher(t, outbox.Config{})
	inTx(t, pool, func(tx pgx.Tx) { require.NoError(t, p.PublishTx(t.Context(), tx, "topic", numbered(2, 2)...)) })

	// A reader is in the middle of a batch: the relay stands by.
	reader, rows := stockRead(t, db)
	require.Equal(t, 2, rows)
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{})
	eventually(t, "the relay has tried in vain", func() bool {
		var tried bool
		err := pool.QueryRow(t.Context(), `select exists (select from pg_stat_activity
			where datname = current_database() and query like '%try_advisory_lock_shared%' and pid <> pg_backend_pid())`).Scan(&tried)
		return err == nil && tried
	})
	require.Empty(t, b.all())
	require.NoError(t, reader.Rollback())
	b.wait(t, 2)

	// The relay is at work: a reader gets nothing.
	refusing := newBroker()
	refusing.refuse = func(string, *message.Message) error { return errors.New("refused") }
	pool2 := newPool(t)
	inTx(t, pool2, func(tx pgx.Tx) { require.NoError(t, p.PublishTx(t.Context(), tx, "topic", numbered(2, 2)...)) })
	stop := startRelay(t, pool2, refusing, outbox.RelayConfig{})
	eventually(t, "the relay has its locks", func() bool { return advisoryLocks(t, pool2) == 1+1+16 })
	db2 := newDB(t, pool2)
	reader, rows = stockRead(t, db2)
	require.Zero(t, rows)
	require.NoError(t, reader.Rollback())
	stop()
	reader, rows = stockRead(t, db2)
	require.Equal(t, 2, rows)
	require.NoError(t, reader.Rollback())
}

// stockRead does what a stock Subscriber does at the beginning of a batch.
func stockRead(t testing.TB, db *sql.DB) (tx *sql.Tx, rows int) {
	t.Helper()
	adapter := outbox.SchemaAdapter{}
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: adapter.SubscribeIsolationLevel()})
	require.NoError(t, err)
	query := adapter.SelectQuery("outbox", "", outbox.OffsetsAdapter{})
	result, err := tx.Query(query.Query, query.Args...)
	require.NoError(t, err)
	for result.Next() {
		_, err := adapter.UnmarshalMessage(result)
		require.NoError(t, err)
		rows++
	}
	require.NoError(t, result.Err())
	require.NoError(t, result.Close())
	return tx, rows
}

func advisoryLocks(t testing.TB, pool *pgxpool.Pool) (held int) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `select count(*) from pg_locks where locktype = 'advisory' and granted
		and database = (select oid from pg_database where datname = current_database())`).Scan(&held)
	require.NoError(t, err)
	return held
}
