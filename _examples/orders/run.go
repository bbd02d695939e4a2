package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"golang.org/x/sync/errgroup"

	"github.com/watermill-once/watermill-once/_examples/broker"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
)

type config struct {
	broker   string
	database string // "": a server is started
	events   int
	seed     uint64
	logger   watermill.LoggerAdapter
}

// run starts both services, has the feed do its worst, and returns nil only if both hold what the events say.
func run(ctx context.Context, c config, out io.Writer) (err error) {
	if c.events < 1 {
		return fmt.Errorf("-events %d: at least one is needed", c.events)
	}
	if err := broker.Check(c.broker); err != nil {
		return err
	}
	db, err := openDatabase(ctx, c.database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	b, err := broker.Open(ctx, c.broker, c.logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()

	var (
		tally  tally
		orders = ordersService{pool: db.orders, topics: topicsOf(db.run), broker: b, tally: &tally}
		bills  = billingService{pool: db.billing, topics: topicsOf(db.run), broker: b, tally: &tally}
		feed   = newFeed(c.events, c.seed)
		late   = &repeater{Publisher: b.Publisher}
	)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 30 * time.Second}, c.logger)
	if err != nil {
		return err
	}
	poison, err := wmiddleware.PoisonQueueWithFilter(b.Publisher, db.run+"-poison", once.ShouldPoison)
	if err != nil {
		return err
	}
	router.AddMiddleware(poison, broker.Retry(once.ShouldRetry).Middleware, wmiddleware.Recoverer)
	publisher, err := outbox.NewPublisher(outbox.Config{})
	if err != nil {
		return err
	}
	if err := b.Create(ctx, db.run+"-poison", "poison"); err != nil {
		return err
	}
	if err := errors.Join(orders.addTo(ctx, router, publisher), bills.addTo(ctx, router)); err != nil {
		return err
	}
	relay, err := outbox.NewRelay(db.orders, late, outbox.RelayConfig{Wake: publisher}, c.logger)
	if err != nil {
		return err
	}

	// Everything below ends when this context does, and run returns when everything has ended.
	running, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(running)
	group.Go(func() error { return runRouter(running, router) })
	group.Go(func() error { return relay.Run(running) })
	group.Go(func() error {
		defer stop()
		select {
		case <-running.Done():
			return context.Cause(running)
		case <-router.Running():
		}
		if err := feed.send(running, b.Publisher, orders.topics.events); err != nil {
			return err
		}
		if err := tally.settle(running, db, feed, late); err != nil {
			return err
		}
		return report(running, db, feed, &tally, late, out)
	})
	return group.Wait()
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

// topics are where messages travel. Each run has its own, so that a broker that stays has nothing of another run in them.
type topics struct {
	events  string // from the feed
	changes string // of orders, from the first service to the second
}

func topicsOf(run string) topics { return topics{run + "-events", run + "-changes"} }
