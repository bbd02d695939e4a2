package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/_examples/broker"
	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
)

const billsTable = `
create table bills (
  order_id text primary key,
  status   text not null,
  amount   bigint not null -- in cents
)`

// billingService has a bill for each order, in a database of its own.
type billingService struct {
	pool   *pgxpool.Pool
	topics topics
	broker *broker.Broker
	tally  *tally
}

// addTo needs no claims: a change that comes again, or late, is not beyond the sequence that its order has.
func (s billingService) addTo(ctx context.Context, router *message.Router) error {
	config := once.Config{
		Consumer:  "billing",
		Dedupe:    dedupe.Config{Disabled: true},
		Ordering:  ordering.Config{Position: ordering.OutboxSequence},
		OnOutcome: s.tally.add,
	}
	if err := once.InitializeSchema(ctx, once.Pgx(s.pool), config); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, billsTable); err != nil {
		return fmt.Errorf("billing: %w", err)
	}
	if err := s.broker.Create(ctx, s.topics.changes, "billing"); err != nil {
		return err
	}
	subscriber, err := s.broker.Subscriber("billing")
	if err != nil {
		return err
	}
	transactional, err := once.Transactional(once.Pgx(s.pool), config)
	if err != nil {
		return err
	}
	router.AddConsumerHandler("billing", s.topics.changes, subscriber, s.bill).AddMiddleware(transactional)
	return nil
}

const upsertBill = `
insert into bills (order_id, status, amount)
values ($1, $2, $3)
on conflict (order_id) do update
set status = excluded.status, amount = excluded.amount`

// bill is called for changes that are newer than what the bill has. Its one write travels with the COMMIT.
func (s billingService) bill(msg *message.Message) error {
	var c change
	if err := json.Unmarshal(msg.Payload, &c); err != nil {
		return once.Permanent(err)
	}
	return once.Queue(msg.Context(), upsertBill, c.Order, c.Status, c.Total)
}
