package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/watermill-once/watermill-once/_examples/broker"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
)

// tables hold whatever is done, be it done twice: nothing in them keeps an event from having two effects.
const tables = `
create table payments (event_id text not null, amount bigint not null);
create table balance (amount bigint not null);
insert into balance values (0);
create table receipts (payment text not null)`

// payment is what an event asks for.
type payment struct {
	Amount int64 `json:"amount"`
}

// service makes the payments, and sends a receipt for each.
type service struct {
	Database string // its URL
	Broker   string
	Run      string // the prefix of the topics
	Crash    string // the point at which the process is to die; "": it is not
}

func (s service) payments() string { return s.Run + "-payments" }
func (s service) receipts() string { return s.Run + "-receipts" }
func (s service) poison() string   { return s.Run + "-poison" }

// run works until the context ends.
func (s service) run(ctx context.Context) (err error) {
	pool, err := pgxpool.New(ctx, s.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	b, err := broker.Open(ctx, s.Broker, logger())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	publisher, err := outbox.NewPublisher(outbox.Config{})
	if err != nil {
		return err
	}
	trap := &trap{point: s.Crash}
	router, err := s.router(pool, b, publisher, trap)
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(pool, trappedPublisher{b.Publisher, trap}, outbox.RelayConfig{Wake: publisher}, logger())
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return runRouter(ctx, router) })
	group.Go(func() error { return relay.Run(ctx) })
	return group.Wait()
}

func (s service) router(pool *pgxpool.Pool, b *broker.Broker, publisher *outbox.Publisher, trap *trap) (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 30 * time.Second}, logger())
	if err != nil {
		return nil, err
	}
	poison, err := wmiddleware.PoisonQueueWithFilter(b.Publisher, s.poison(), once.ShouldPoison)
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(poison, broker.Retry(once.ShouldRetry).Middleware, wmiddleware.Recoverer)

	pay, err := once.Transactional(once.Pgx(pool), once.Config{
		Consumer: "payments",
		Outbox:   publisher,
		OnOutcome: func(_ context.Context, o once.Outcome) {
			if o.Kind == once.Fresh {
				trap.reach(afterCommit)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	subscriber, err := b.Subscriber("payments")
	if err != nil {
		return nil, err
	}
	// The publisher is never called: what handlers return goes to the outbox.
	handler := router.AddHandler("payments", s.payments(), subscriber, s.receipts(), publisher, trap.pay)
	handler.AddMiddleware(trap.before, pay, trap.after)

	keep, err := once.Transactional(once.Pgx(pool), once.Config{Consumer: "receipts"})
	if err != nil {
		return nil, err
	}
	if subscriber, err = b.Subscriber("receipts"); err != nil {
		return nil, err
	}
	router.AddConsumerHandler("receipts", s.receipts(), subscriber, keepReceipt).AddMiddleware(keep)
	return router, nil
}

// pay adds to the balance, which is right only if it is done once for each event.
func (t *trap) pay(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	var p payment
	if err := json.Unmarshal(msg.Payload, &p); err != nil {
		return nil, once.Permanent(err)
	}
	tx, _ := once.PgxTx(ctx)
	if _, err := tx.Exec(ctx, `insert into payments (event_id, amount) values ($1, $2)`, once.EventID(ctx), p.Amount); err != nil {
		return nil, err
	}
	t.reach(inHandler)
	if _, err := tx.Exec(ctx, `update balance set amount = amount + $1`, p.Amount); err != nil {
		return nil, err
	}
	uuid, _ := once.DeriveUUID(ctx, "receipt")
	return []*message.Message{message.NewMessage(uuid, []byte(once.EventID(ctx)))}, nil
}

func keepReceipt(msg *message.Message) error {
	return once.Queue(msg.Context(), `insert into receipts (payment) values ($1)`, string(msg.Payload))
}

// runRouter runs the router until the context ends. It closes the router then: a context that ended instead would end the
// messages' own contexts with it, and cut short what is being done.
func runRouter(ctx context.Context, router *message.Router) error {
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(ctx)) }()
	select {
	case err := <-ended:
		return err
	case <-router.Running():
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return errors.Join(router.Close(), <-ended)
	}
}
