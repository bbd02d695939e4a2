package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/_examples/broker"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
)

//go:embed tables.sql
var tables string

// service is what the deliveries are for: cards, a ledger, and an e-mail for each change of a card.
type service struct {
	pool   *pgxpool.Pool
	broker *broker.Broker
	topics topics
	source source
	outbox *outbox.Publisher
	counts *counts
	faults faults
	logger watermill.LoggerAdapter
}

// prepare makes tables and topics.
func (s *service) prepare(ctx context.Context) error {
	if err := once.InitializeSchema(ctx, once.Pgx(s.pool)); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, tables); err != nil {
		return fmt.Errorf("tables: %w", err)
	}
	for _, topic := range s.topics.incoming {
		if err := s.broker.Create(ctx, topic, "cards-"+topic, "ledger-"+topic); err != nil {
			return err
		}
	}
	return errors.Join(s.broker.Create(ctx, s.topics.notices, "mails"), s.broker.Create(ctx, s.topics.poison, "poison"))
}
