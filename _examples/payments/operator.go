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
// that gets it finds the outcome, or charges where there was none. All of it commits together.
func (s *service) resolve(ctx context.Context, r chargeRequest) error {
	found, err := s.provider.lookUp(ctx, r.Order)
	if err != nil {
		return err
	}
	msg, err := r.message(watermill.NewUUID())
	if err != nil {
		return err
	}
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := s.resolveCharge(ctx, tx, r.Key, found); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, reopenOrder, r.Order); err != nil {
			return err
		}
		return s.outbox.PublishTx(ctx, tx, s.topic(charges), msg)
	})
	if errors.Is(err, dedupe.ErrNotUnknown) {
		return nil // another operator was faster, and has sent the message
	}
	s.outbox.Wake()
	return err
}

func (s *service) resolveCharge(ctx context.Context, tx pgx.Tx, key string, found finding) error {
	switch {
	case found.Charge != "":
		return s.effects.ResolveTx(ctx, tx, key, charged{found.Charge})
	case found.Declined != "":
		return s.effects.ResolveFinalTx(ctx, tx, key, errors.New(found.Declined))
	default:
		return s.effects.ResolveNotDoneTx(ctx, tx, key)
	}
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
	switch {
	case err != nil:
		return nil, false, err
	case known.Declined != "":
		return nil, false, dedupe.Final(errors.New(known.Declined))
	case known.Charge == "":
		return nil, false, nil
	}
	outcome, err = json.Marshal(charged{known.Charge})
	return outcome, true, err
}
