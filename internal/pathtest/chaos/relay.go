package main

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/internal/pathtest"
	"github.com/watermill-once/watermill-once/outbox"
	"github.com/watermill-once/watermill-once/outbox/kafkasink"
)

// relay sends what the outbox holds: the second of its kind message by message, the others in batches.
func (r role) relay(ctx context.Context, pool *pgxpool.Pool, l *ledger) error {
	logger := watermill.NewStdLogger(false, false)
	var broker message.Publisher
	if r.second() || r.Sabotage == deleteFirst || r.Sabotage == forgetsOrder {
		publisher, err := pathtest.NewPublisher(r.Brokers, logger)
		if err != nil {
			return err
		}
		broker = notedPublisher{publisher, l}
	} else {
		sink, err := kafkasink.New(r.Brokers, kafkasink.Config{})
		if err != nil {
			return err
		}
		broker = notedSink{sink, l}
	}
	switch r.Sabotage {
	case deleteFirst:
		return sabotagedRelay(ctx, pool, broker, `"offset"`)
	case forgetsOrder:
		return sabotagedRelay(ctx, pool, broker, `md5(uuid)`)
	}
	relay, err := outbox.NewRelay(pool, broker, outbox.RelayConfig{Shards: 8}, logger)
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

// notedPublisher notes what it is given, and what becomes of it.
type notedPublisher struct {
	message.Publisher
	ledger *ledger
}

func (p notedPublisher) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		noteSending(p.ledger, topic, msg)
	}
	err := p.Publisher.Publish(topic, messages...)
	for _, msg := range messages {
		noteSent(p.ledger, msg, err)
	}
	return err
}

type notedSink struct {
	*kafkasink.Sink
	ledger *ledger
}

func (s notedSink) PublishBatch(ctx context.Context, batch []outbox.Outgoing) []error {
	for _, out := range batch {
		noteSending(s.ledger, out.Topic, out.Message)
	}
	errs := s.Sink.PublishBatch(ctx, batch)
	for i, out := range batch {
		noteSent(s.ledger, out.Message, errs[i])
	}
	return errs
}

func noteSending(l *ledger, topic string, msg *message.Message) {
	l.note(sending, msg.UUID, "to %s, key %s, sequence %s, cause %s",
		topic, msg.Metadata[outbox.PartitionKeyKey], msg.Metadata[outbox.SequenceKey], msg.Metadata[causeKey])
}

func noteSent(l *ledger, msg *message.Message, err error) {
	if err != nil {
		l.note(unsent, msg.UUID, "%v", err)
	} else {
		l.note(sent, msg.UUID, "")
	}
}

// sabotagedRelay deletes, commits, and then publishes: one relay, as naive as they come.
func sabotagedRelay(ctx context.Context, pool *pgxpool.Pool, broker message.Publisher, order string) error {
	for {
		rows, err := pool.Query(ctx, `
with taken as (
  delete from watermill_outbox
  where "offset" in (select "offset" from watermill_outbox order by `+order+` limit 20 for update skip locked)
  returning "offset", uuid, topic, key, payload, metadata
)
select uuid, topic, key, payload, metadata, "offset"::text from taken order by `+order)
		if err != nil {
			return err
		}
		type row struct {
			UUID, Topic, Key string
			Payload          []byte
			Metadata         map[string]string
			Sequence         string
		}
		taken, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		if err != nil {
			return err
		}
		for _, t := range taken {
			msg := message.NewMessage(t.UUID, t.Payload)
			msg.Metadata = t.Metadata
			msg.Metadata.Set(outbox.SequenceKey, t.Sequence)
			if err := broker.Publish(t.Topic, msg); err != nil {
				return err
			}
		}
		if len(taken) == 0 {
			time.Sleep(50 * time.Millisecond)
		}
	}
}
