package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/_examples/broker"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
)

const ordersTable = `
create table orders (
  id      text primary key,
  status  text not null,
  total   bigint not null, -- in cents
  version bigint not null
)`

// ordersService holds each order as the newest of its events says, and tells of each change.
type ordersService struct {
	pool   *pgxpool.Pool
	topics topics
	broker *broker.Broker
	tally  *tally
}

// change is what other services hear of an order. It has no version: the outbox counts for it.
type change struct {
	Order  string `json:"order"`
	Status string `json:"status"`
	Total  int64  `json:"total"`
}

func (s ordersService) addTo(ctx context.Context, router *message.Router, publisher *outbox.Publisher) error {
	config := once.Config{Consumer: "orders", Outbox: publisher, OnOutcome: s.tally.add}
	if err := once.InitializeSchema(ctx, once.Pgx(s.pool), config, publisher); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, ordersTable); err != nil {
		return fmt.Errorf("orders: %w", err)
	}
	if err := s.broker.Create(ctx, s.topics.events, "orders"); err != nil {
		return err
	}
	subscriber, err := s.broker.Subscriber("orders")
	if err != nil {
		return err
	}
	transactional, err := once.Transactional(once.Pgx(s.pool), config)
	if err != nil {
		return err
	}
	// The publisher is never called: what handlers return goes to the outbox.
	router.AddHandler("orders", s.topics.events, subscriber, s.topics.changes, publisher, s.apply).AddMiddleware(transactional)
	return nil
}

// The total is set and not added to, and only by a newer version: run twice, or late, it does no harm. So the claims may be
// deleted some day.
const upsertOrder = `
insert into orders (id, status, total, version)
values ($1, $2, $3, $4)
on conflict (id) do update
set status = excluded.status, total = excluded.total, version = excluded.version
where orders.version < excluded.version`

// apply is called once for each event, in whatever order they come.
func (s ordersService) apply(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	var e event
	if err := json.Unmarshal(msg.Payload, &e); err != nil {
		return nil, once.Permanent(err)
	}
	tx, _ := once.PgxTx(ctx)
	tag, err := tx.Exec(ctx, upsertOrder, e.Order, e.Status, e.Total, e.Version)
	if err != nil || tag.RowsAffected() == 0 { // none: the order has a newer version
		return nil, err
	}
	payload, err := json.Marshal(change{Order: e.Order, Status: e.Status, Total: e.Total})
	if err != nil {
		return nil, err
	}
	uuid, _ := once.DeriveUUID(ctx, "change")
	out := message.NewMessage(uuid, payload)
	out.Metadata.Set(outbox.PartitionKeyKey, e.Order) // the changes of one order keep their order
	return []*message.Message{out}, nil
}
