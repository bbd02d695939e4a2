package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/watermill-once/watermill-once/_examples/broker"
	once "github.com/watermill-once/watermill-once/middleware"
)

// Topics, and the groups that read them.
const (
	orders   = "orders"   // what customers want
	charges  = "charges"  // cards to charge, from orders
	receipts = "receipts" // e-mails to send, from charges
	poison   = "poison"   // what cannot be handled
)

func (s *service) topic(name string) string { return s.Run + "-" + name }

// router puts the three handlers behind the middleware.
func (s *service) router() (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, s.logger)
	if err != nil {
		return nil, err
	}
	poisoned, err := wmiddleware.PoisonQueueWithFilter(s.broker.Publisher, s.topic(poison), once.ShouldPoison)
	if err != nil {
		return nil, err
	}
	retry := broker.Retry(once.ShouldRetry)
	router.AddMiddleware(poisoned, retry.Middleware, wmiddleware.Recoverer)

	// All of its effects are in the database.
	transactional, err := once.Transactional(once.Pgx(s.pool), once.Config{Consumer: orders, Outbox: s.outbox})
	if err != nil {
		return nil, err
	}
	subscriber, err := s.broker.Subscriber(s.topic(orders))
	if err != nil {
		return nil, err
	}
	router.AddHandler(orders, s.topic(orders), subscriber, s.topic(charges), s.outbox, s.placeOrder).AddMiddleware(transactional)

	// Its call has an outcome worth keeping, so the handler makes it by dedupe.Do.
	if subscriber, err = s.broker.Subscriber(s.topic(charges)); err != nil {
		return nil, err
	}
	router.AddConsumerHandler(charges, s.topic(charges), subscriber, s.chargeCard)

	// The whole handler is one call, and its outcome is that it was made.
	leased, err := once.Leased(s.pool, s.mailing())
	if err != nil {
		return nil, err
	}
	if subscriber, err = s.broker.Subscriber(s.topic(receipts)); err != nil {
		return nil, err
	}
	router.AddConsumerHandler(receipts, s.topic(receipts), subscriber, s.mailReceipt).AddMiddleware(leased)
	return router, nil
}

// runRouter runs the router until the context ends. It closes the router then: a context that ended instead would end the
// messages' own contexts with it, and cut short the calls that are being made.
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
