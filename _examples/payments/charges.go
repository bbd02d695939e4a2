package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
)

// charged is the outcome of a charge, as the journal keeps it.
type charged struct {
	Charge string `json:"charge"`
}

// chargeCard has no transaction around it. It may run for one order many times, in two processes at once too: Do sees to it that
// the provider is called when nobody else is calling, and that everyone gets the one outcome.
func (s *service) chargeCard(msg *message.Message) error {
	ctx := msg.Context()
	var r chargeRequest
	if err := json.Unmarshal(msg.Payload, &r); err != nil {
		return once.Permanent(err)
	}
	outcome, err := dedupe.Do(ctx, s.effects, r.Key, r, func(ctx context.Context, key string) (charged, error) {
		return s.provider.charge(ctx, key, r)
	})
	var final *dedupe.FinalError
	switch {
	case err == nil:
		return s.settle(ctx, r.Order, "paid", outcome.Charge)
	case errors.As(err, &final):
		return s.settle(ctx, r.Order, "declined", final.Text)
	case errors.Is(err, dedupe.ErrUnknown):
		// The provider may have charged or not, and no retry will tell: see resolve.
		return s.settle(ctx, r.Order, "unknown", "to be looked up")
	}
	return err // to be retried, or delivered again
}

const settleOrder = `
update orders
set status = $2, detail = $3
where id = $1
  and status in ('placed', 'unknown')`

// settle writes what became of the charge, and asks for the receipt in the same transaction. After a crash in between, Do gives the
// stored outcome and settle runs again.
func (s *service) settle(ctx context.Context, order, status, detail string) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, settleOrder, order, status, detail)
		if err != nil || tag.RowsAffected() == 0 || status != "paid" {
			return err
		}
		mail, err := receipt{Order: order, Charge: detail}.message()
		if err != nil {
			return err
		}
		return s.outbox.PublishTx(ctx, tx, s.topic(receipts), mail)
	})
	if err != nil {
		return fmt.Errorf("settle order: %w", err)
	}
	s.outbox.Wake()
	return nil
}
