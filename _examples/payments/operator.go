package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/watermill-once/dedupe"
)

const unknownOrders = `
select id, amount, charge_key
from orders
where status = 'unknown'
order by id`

// resolveAll is what an operator does under dedupe.Refuse, here or on a page of the back office.
func (s *service) resolveAll(ctx context.Context) (resolved int, err error) {
	rows, err := s.pool.Query(ctx, unknownOrders)
	if err != nil {
		return 0, fmt.Errorf("unknown orders: %w", err)
	}
	unknown, err := pgx.CollectRows(rows, pgx.RowToStructByPos[chargeRequest])
	if err != nil {
		return 0, fmt.Errorf("unknown orders: %w", err)
	}
	for i, r := range unknown {
		if err := s.resolve(ctx, r); err != nil {
			return i, fmt.Errorf("resolve %s: %w", r.Order, err)
		}
	}
	return len(unknown), nil
}

const reopenOrder = `
update orders
set status = 'placed', detail = ''
where id = $1
  and status = 'unknown'`

// resolve looks an order up at the provider, says in the journal what became of the charge, and sends the message again: the worker
// that gets it finds the outcome, or charges where there was none. It may be broken off anywhere and run again.
func (s *service) resolve(ctx context.Context, r chargeRequest) error {
	found, err := s.provider.lookUp(ctx, r.Order)
	if err != nil {
		return err
	}
	switch {
	case found.Charge != "":
		err = s.effects.Resolve(ctx, r.Key, charged{found.Charge})
	case found.Declined != "":
		err = s.effects.ResolveFinal(ctx, r.Key, errors.New(found.Declined))
	default:
		err = s.effects.ResolveNotDone(ctx, r.Key)
	}
	if err != nil && !errors.Is(err, dedupe.ErrNotUnknown) { // it may be resolved, and not sent yet
		return err
	}
	msg, err := r.message(watermill.NewUUID())
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, reopenOrder, r.Order); err != nil {
			return err
		}
		return s.outbox.PublishTx(ctx, tx, s.topic(charges), msg)
	})
}

const orderByKey = `
select id
from orders
where charge_key = $1`

// probe is the operator's question, asked by dedupe.Do before it repeats a call that may have taken effect. It has to see a charge that
// is still under way: this provider books a charge before it does anything that takes time.
func (s *service) probe(ctx context.Context, key string) (outcome json.RawMessage, found bool, err error) {
	var order string
	if err := s.pool.QueryRow(ctx, orderByKey, key).Scan(&order); err != nil {
		return nil, false, fmt.Errorf("order of a charge: %w", err)
	}
	known, err := s.provider.lookUp(ctx, order)
	if err != nil || known.Charge == "" {
		return nil, false, err // a card that was declined may be asked for again
	}
	outcome, err = json.Marshal(charged{known.Charge})
	return outcome, true, err
}
