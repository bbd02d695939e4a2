package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/watermill-once/watermill-once/_examples/broker"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
)

// router puts the consumers behind the middleware.
func (s *service) router() (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 30 * time.Second}, s.logger)
	if err != nil {
		return nil, err
	}
	poison, err := wmiddleware.PoisonQueueWithFilter(s.broker.Publisher, s.topics.poison, once.ShouldPoison)
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(poison, broker.Retry(once.ShouldRetry).Middleware, wmiddleware.Recoverer)

	// Only cards care for order. An old event must not bring an old status back, but its amount still counts.
	cards, err := once.Transactional(once.Pgx(s.pool), once.Config{
		Consumer:  "cards",
		Ordering:  ordering.Config{Position: s.source.position},
		Outbox:    s.outbox,
		OnOutcome: s.counts.add,
	})
	if err != nil {
		return nil, err
	}
	ledger, err := once.Transactional(once.Pgx(s.pool), once.Config{
		Consumer:  "ledger",
		OnOutcome: s.counts.add,
	})
	if err != nil {
		return nil, err
	}
	mails, err := once.Transactional(once.Pgx(s.pool), once.Config{
		Consumer:  "mails",
		OnOutcome: s.counts.add,
	})
	if err != nil {
		return nil, err
	}

	for _, topic := range s.topics.incoming {
		subscriber, err := s.broker.Subscriber("cards-" + topic)
		if err != nil {
			return nil, err
		}
		// The publisher is never called: what handlers return goes to the outbox, for the notices.
		handler := router.AddHandler("cards-"+topic, topic, subscriber, s.topics.notices, s.outbox, s.changeCard)
		handler.AddMiddleware(cards, s.faults.failSome)

		if subscriber, err = s.broker.Subscriber("ledger-" + topic); err != nil {
			return nil, err
		}
		handler = router.AddConsumerHandler("ledger-"+topic, topic, subscriber, s.addToLedger)
		handler.AddMiddleware(ledger, s.faults.failSome)
	}
	subscriber, err := s.broker.Subscriber("mails")
	if err != nil {
		return nil, err
	}
	router.AddConsumerHandler("mails", s.topics.notices, subscriber, s.sendMail).AddMiddleware(mails, s.faults.failSome)

	if subscriber, err = s.broker.Subscriber("poison"); err != nil {
		return nil, err
	}
	router.AddConsumerHandler("poison", s.topics.poison, subscriber, s.counts.addPoisoned)
	return router, nil
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
