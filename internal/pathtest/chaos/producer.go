package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/watermill-once/watermill-once/internal/pathtest"
	"github.com/watermill-once/watermill-once/outbox"
)

const (
	accounts    = 40
	versionStep = 10 // leaves room for late events
)

// event is a payload of topicEvents.
type event struct {
	Entity  string `json:"entity"`
	Version int64  `json:"version"`
}

// produce makes events, each in a business transaction of its own, until the table has the producer's quota.
func (r role) produce(ctx context.Context, pool *pgxpool.Pool, l *ledger) error {
	publisher, err := outbox.NewPublisher(outbox.Config{})
	if err != nil {
		return err
	}
	p := &eventMaker{role: r, pool: pool, ledger: l, outbox: publisher}
	if r.Sabotage == dualWrite {
		if p.broker, err = pathtest.NewPublisher(r.Brokers, watermill.NopLogger{}); err != nil {
			return err
		}
	}
	const workers = 4
	group, ctx := errgroup.WithContext(ctx)
	for range workers {
		group.Go(func() error { return p.run(ctx, time.Second*workers/time.Duration(r.Rate)) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	select {} // done, and still there to be killed
}

type eventMaker struct {
	role   role
	pool   *pgxpool.Pool
	ledger *ledger
	outbox *outbox.Publisher
	broker message.Publisher // of a saboteur
}

// run makes an event each interval: two at a time where it is behind.
func (p *eventMaker) run(ctx context.Context, interval time.Duration) error {
	next := time.Now()
	for {
		var made int
		err := p.pool.QueryRow(ctx, `select count(*) from effects where consumer = 'producer' and maker = $1`, p.role.Name).Scan(&made)
		if made >= p.role.Quota {
			return nil
		}
		for range 10 { // between two looks at the table
			if err = errors.Join(err, p.makeOne(ctx)); err != nil {
				break
			}
			if next = next.Add(interval); time.Until(next) < -2*time.Second {
				next = time.Now().Add(-2 * time.Second)
			}
			time.Sleep(time.Until(next))
		}
		if err != nil {
			time.Sleep(50 * time.Millisecond)
		}
	}
}

var errWithdrawn = errors.New("withdrawn")

// makeOne gives an error where the database is at fault. Now and then an event that was published is withdrawn by a rollback.
func (p *eventMaker) makeOne(ctx context.Context) error {
	id := watermill.NewUUID()
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		e := event{Entity: fmt.Sprintf("account-%d", rand.IntN(accounts))}
		if err := tx.QueryRow(ctx, moveAccount, e.Entity, versionStep).Scan(&e.Version); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, apply, producer, id, e.Entity, e.Version, id, p.role.Name); err != nil {
			return err
		}
		payload, err := json.Marshal(e)
		if err != nil {
			return err
		}
		msg := message.NewMessage(id, payload)
		msg.Metadata.Set(outbox.PartitionKeyKey, e.Entity)
		p.ledger.note(producing, id, "%s to version %d", e.Entity, e.Version)
		if p.broker != nil {
			err = p.broker.Publish(p.role.Prefix+topicEvents, msg)
		} else {
			err = p.outbox.PublishTx(ctx, tx, p.role.Prefix+topicEvents, msg)
		}
		if err == nil && rand.IntN(20) == 0 {
			return errWithdrawn
		}
		return err
	})
	switch {
	case err == nil:
		p.ledger.note(produced, id, "")
	case errors.Is(err, errWithdrawn):
		p.ledger.note(withdrawn, id, "")
		return nil
	default:
		p.ledger.note(unproduced, id, "%v", err)
	}
	return err
}

const moveAccount = `
insert into accounts as a (entity, version)
values ($1, $2)
on conflict (entity) do update
set version = a.version + $2
returning version`
