package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/attempt"
	"github.com/watermill-once/watermill-once/outbox"
)

var _ message.Publisher = (*outbox.Publisher)(nil)

func TestConfigReportsAllFaults(t *testing.T) {
	t.Parallel()
	_, err := outbox.NewPublisher(outbox.Config{Topic: strings.Repeat("ä", 30) + `"`})
	require.ErrorContains(t, err, "bytes long")
	require.ErrorContains(t, err, "holds other than")

	for _, topic := range []string{"a b", `a"b`, "a/b", "a%b", "a'b", "a\x00b", strings.Repeat("x", 43)} {
		_, err := outbox.NewPublisher(outbox.Config{Topic: topic})
		require.Error(t, err, topic)
	}
	for _, topic := range []string{"", "a", "A-$:._9", strings.Repeat("x", 42)} {
		_, err := outbox.NewPublisher(outbox.Config{Topic: topic})
		require.NoError(t, err, topic)
	}
	require.Equal(t, `"watermill_outbox"`, outbox.Config{}.Table())
}

func TestPublishOnTheContextIsWrittenWithTheCommit(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	first, second := newPublisher(t, outbox.Config{}), newPublisher(t, outbox.Config{Topic: "second"})

	handle(t, pool, nil, func(ctx context.Context) {
		msg := newMessage("key", "1")
		msg.SetContext(ctx)
		require.NoError(t, first.Publish("a", msg))
		require.NoError(t, second.PublishContext(ctx, "b", newMessage("key", "2"), newMessage("other", "3")))
		require.NoError(t, first.PublishContext(ctx, "c", newMessage("", "4")))
		require.Empty(t, contents(t, pool, outbox.Config{}))
	})

	rows := contents(t, pool, outbox.Config{})
	require.Len(t, rows, 2)
	require.Equal(t, []string{"a", "c"}, []string{rows[0].Topic, rows[1].Topic})
	rows = contents(t, pool, outbox.Config{Topic: "second"})
	require.Len(t, rows, 2)
	require.Equal(t, []string{"2", "3"}, []string{string(rows[0].Payload), string(rows[1].Payload)})
}

func TestPublisherKeepsNothingOfTheMessage(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	handle(t, pool, map[string]string{"correlation_id": "c"}, func(ctx context.Context) {
		msg := newMessage("key", "before")
		msg.SetContext(ctx)
		metadata := len(msg.Metadata)
		require.NoError(t, p.Publish("topic", msg))
		require.Len(t, msg.Metadata, metadata, "the caller's message was changed")
		copy(msg.Payload, "after!")
		msg.Metadata["added"] = "later"
	})
	rows := contents(t, pool, outbox.Config{})
	require.Len(t, rows, 1)
	require.Equal(t, "before", string(rows[0].Payload))
	require.Equal(t, map[string]string{"partition_key": "key", "correlation_id": "c"}, decode(t, rows[0].Metadata))
}

func TestInheritedMetadata(t *testing.T) {
	t.Parallel()
	headers := map[string]string{"correlation_id": "C", "traceparent": "P", "tracestate": "S", "baggage": "B"}
	for name, test := range map[string]struct{ own, want map[string]string }{
		"nothing of its own":   {nil, headers},
		"its own correlation":  {map[string]string{"correlation_id": "c"}, map[string]string{"correlation_id": "c", "traceparent": "P", "tracestate": "S", "baggage": "B"}},
		"an empty correlation": {map[string]string{"correlation_id": ""}, headers},
		"its own trace":        {map[string]string{"traceparent": "p"}, map[string]string{"correlation_id": "C", "traceparent": "p"}},
		"its own whole trace": {
			map[string]string{"traceparent": "p", "tracestate": "s", "baggage": ""},
			map[string]string{"correlation_id": "C", "traceparent": "p", "tracestate": "s", "baggage": ""},
		},
		"its own baggage": {map[string]string{"baggage": "b"}, map[string]string{"correlation_id": "C", "traceparent": "P", "tracestate": "S", "baggage": "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := &attempt.Attempt{Headers: headers}
			msg := newMessage("", "")
			msg.Metadata = test.own
			require.NoError(t, newPublisher(t, outbox.Config{}).PublishContext(attempt.NewContext(t.Context(), a), "topic", msg))
			_, rows, _ := a.End()
			require.Equal(t, test.want, decode(t, rows[0].Metadata))
		})
	}
}

func TestInheritedMetadataThatIsNoTextIsLeftOut(t *testing.T) {
	t.Parallel()
	a := &attempt.Attempt{Headers: map[string]string{"correlation_id": "\xff", "traceparent": "a\x00b"}}
	require.NoError(t, newPublisher(t, outbox.Config{}).PublishContext(attempt.NewContext(t.Context(), a), "topic", newMessage("", "")))
	_, rows, _ := a.End()
	require.Equal(t, "{}", rows[0].Metadata)
}

func TestInvalidMessagesAreRefusedBeforeAnythingIsWritten(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	with := func(change func(*message.Message)) *message.Message {
		msg := newMessage("key", "secret payload")
		msg.UUID = "the-uuid"
		change(msg)
		return msg
	}
	for name, test := range map[string]struct {
		topic string
		msg   *message.Message
		names string
	}{
		"no topic":                     {"", with(func(*message.Message) {}), "topic is empty"},
		"topic no UTF-8":               {"\xff", with(func(*message.Message) {}), "topic is not valid UTF-8"},
		"topic with NUL":               {"a\x00b", with(func(*message.Message) {}), "topic holds a NUL"},
		"topic too long":               {strings.Repeat("t", 513), with(func(*message.Message) {}), "topic is 513 bytes long"},
		"no UUID":                      {"topic", with(func(m *message.Message) { m.UUID = "" }), "UUID is empty"},
		"UUID no UTF-8":                {"topic", with(func(m *message.Message) { m.UUID = "\xff" }), "UUID is not valid UTF-8"},
		"empty key":                    {"topic", with(func(m *message.Message) { m.Metadata["partition_key"] = "" }), "partition_key is empty"},
		"key with NUL":                 {"topic", with(func(m *message.Message) { m.Metadata["partition_key"] = "a\x00b" }), "ordering key holds a NUL"},
		"key too long":                 {"topic", with(func(m *message.Message) { m.Metadata["partition_key"] = strings.Repeat("k", 513) }), "ordering key is 513 bytes long"},
		"metadata value no UTF-8":      {"topic", with(func(m *message.Message) { m.Metadata["name"] = "\xff" }), `metadata "name" is not valid UTF-8`},
		"metadata value with NUL":      {"topic", with(func(m *message.Message) { m.Metadata["name"] = "\x00" }), `metadata "name" holds a NUL`},
		"metadata key that is no text": {"topic", with(func(m *message.Message) { m.Metadata["\xff"] = "" }), "metadata key"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPublisher(t, outbox.Config{})
			inTx(t, pool, func(tx pgx.Tx) {
				for _, msgs := range [][]*message.Message{{test.msg}, {newMessage("key", ""), test.msg}} {
					err := p.PublishTx(t.Context(), tx, test.topic, msgs...)
					require.ErrorIs(t, err, outbox.ErrInvalidMessage)
					require.ErrorContains(t, err, test.names)
					require.NotContains(t, err.Error(), "secret")
				}
			})
			requireEmpty(t, pool)

			a := &attempt.Attempt{}
			require.ErrorIs(t, p.PublishContext(attempt.NewContext(t.Context(), a), test.topic, newMessage("key", ""), test.msg), outbox.ErrInvalidMessage)
			_, rows, _ := a.End()
			require.Empty(t, rows)
		})
	}

	fault := errors.New("no such entity")
	p := newPublisher(t, outbox.Config{Key: func(string, *message.Message) (string, error) { return "", fault }})
	err := p.PublishContext(attempt.NewContext(t.Context(), &attempt.Attempt{}), "topic", newMessage("", ""))
	require.ErrorIs(t, err, fault)
	require.ErrorIs(t, err, outbox.ErrInvalidMessage)
}

func TestNoTransaction(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	msg := newMessage("", "")
	ended := &attempt.Attempt{}
	ended.End()
	endedCtx := attempt.NewContext(t.Context(), ended)

	require.ErrorIs(t, p.Publish("topic", msg), outbox.ErrNoTransaction)
	require.ErrorIs(t, p.PublishContext(t.Context(), "topic", msg), outbox.ErrNoTransaction)
	require.ErrorIs(t, p.PublishContext(endedCtx, "topic", msg), outbox.ErrNoTransaction)
	require.ErrorIs(t, p.PublishContext(endedCtx, "topic", msg, msg), outbox.ErrNoTransaction)
	require.ErrorIs(t, p.PublishTx(t.Context(), nil, "topic", msg), outbox.ErrNoTransaction)
	require.ErrorIs(t, p.PublishSQLTx(t.Context(), nil, "topic", msg), outbox.ErrNoTransaction)

	tx := begin(t, pool)
	require.NoError(t, tx.Rollback(t.Context()))
	require.ErrorIs(t, p.PublishTx(t.Context(), tx, "topic", msg), outbox.ErrNoTransaction)

	db := stdlib.OpenDBFromPool(pool)
	defer func() { require.NoError(t, db.Close()) }()
	sqlTx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, sqlTx.Commit())
	require.ErrorIs(t, p.PublishSQLTx(t.Context(), sqlTx, "topic", msg), outbox.ErrNoTransaction)
}

func TestOnePublishIsForOneTransaction(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, outbox.Config{})
	one, other := &attempt.Attempt{}, &attempt.Attempt{}
	msgs := []*message.Message{newMessage("", ""), newMessage("", "")}
	msgs[0].SetContext(attempt.NewContext(t.Context(), one))
	require.ErrorIs(t, p.Publish("topic", msgs...), outbox.ErrNoTransaction)
	msgs[1].SetContext(attempt.NewContext(t.Context(), other))
	require.ErrorContains(t, p.Publish("topic", msgs...), "another transaction")
	_, rows, _ := one.End()
	require.Empty(t, rows)
}

func TestNoMessagesDoNothing(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, outbox.Config{})
	require.NoError(t, p.Publish(""))
	require.NoError(t, p.PublishContext(t.Context(), ""))
	require.NoError(t, p.PublishTx(t.Context(), nil, ""))
	require.NoError(t, p.PublishSQLTx(t.Context(), nil, ""))
	require.NoError(t, p.Close())
}

// carrier is a transaction of the middleware's.
type carrier struct {
	pgx.Tx
	attempt *attempt.Attempt
}

func (c carrier) Attempt() *attempt.Attempt { return c.attempt }

func TestPublishInTheHandlersOwnTransactionWaitsForTheCommit(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	db := stdlib.OpenDBFromPool(pool)
	defer func() { require.NoError(t, db.Close()) }()

	a := &attempt.Attempt{Headers: map[string]string{"correlation_id": "c"}}
	inTx(t, pool, func(tx pgx.Tx) {
		require.NoError(t, p.PublishTx(t.Context(), carrier{tx, a}, "topic", newMessage("", "")))
		require.Zero(t, countIn(t, tx))
	})

	sqlTx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = sqlTx.Rollback() }()
	a.Hand(sqlTx)
	require.NoError(t, p.PublishSQLTx(attempt.NewContext(t.Context(), a), sqlTx, "topic", newMessage("", "")))
	_, rows, _ := a.End()
	require.Len(t, rows, 2)
	for _, row := range rows {
		require.Equal(t, `{"correlation_id":"c"}`, row.Metadata)
	}
}

func TestPublishInAForeignTransactionWritesAtOnce(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	a := &attempt.Attempt{Headers: map[string]string{"correlation_id": "c"}}
	ctx := attempt.NewContext(t.Context(), a)
	inTx(t, pool, func(tx pgx.Tx) {
		require.NoError(t, p.PublishTx(ctx, tx, "topic", newMessage("", "")))
		require.Equal(t, 1, countIn(t, tx))
	})
	db := stdlib.OpenDBFromPool(pool)
	defer func() { require.NoError(t, db.Close()) }()
	sqlTx, err := db.BeginTx(ctx, &sql.TxOptions{})
	require.NoError(t, err)
	require.NoError(t, p.PublishSQLTx(ctx, sqlTx, "topic", newMessage("", "")))
	require.NoError(t, sqlTx.Commit())

	_, rows, _ := a.End()
	require.Empty(t, rows)
	written := contents(t, pool, outbox.Config{})
	require.Len(t, written, 2)
	require.Equal(t, "{}", written[0].Metadata)
}

func countIn(t *testing.T, tx pgx.Tx) (count int) {
	t.Helper()
	require.NoError(t, tx.QueryRow(t.Context(), `select count(*) from watermill_outbox`).Scan(&count))
	return count
}

func TestPartitionKey(t *testing.T) {
	t.Parallel()
	key, err := outbox.PartitionKey("topic", newMessage("entity", ""))
	require.NoError(t, err)
	require.Equal(t, "entity", key)

	msg := newMessage("", "")
	key, err = outbox.PartitionKey("topic", msg)
	require.NoError(t, err)
	require.Equal(t, msg.UUID, key)

	// A record of another producer: spread, and never under a key that all share.
	msg.UUID = ""
	for _, metadata := range []message.Metadata{nil, {outbox.PartitionKeyKey: ""}} {
		msg.Metadata = metadata
		key, err = outbox.PartitionKey("topic", msg)
		require.NoError(t, err)
		require.NotEmpty(t, key)
		another, err := outbox.PartitionKey("topic", msg)
		require.NoError(t, err)
		require.NotEqual(t, key, another)
	}
}
