package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"golang.org/x/sync/errgroup"

	"github.com/watermill-once/watermill-once/_examples/broker"
	"github.com/watermill-once/watermill-once/outbox"
)

type config struct {
	database string // "": a server is started
	broker   string
	input    string // "": events are made
	events   int
	seed     uint64
	logger   watermill.LoggerAdapter
}

// run starts everything, has the provider send its deliveries, waits until all is handled, and checks what has become of them.
// It returns nil only if every invariant holds.
func run(ctx context.Context, c config, out io.Writer) (err error) {
	if c.broker != ownDatabase {
		if err := broker.Check(c.broker); err != nil {
			return err
		}
	}
	source, events, steps, err := c.load()
	if err != nil {
		return err
	}

	db, err := openDatabase(ctx, c.database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	b, closeBroker, err := openBroker(ctx, c.broker, db, c.logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBroker()) }()

	publisher, err := outbox.NewPublisher(outbox.Config{})
	if err != nil {
		return err
	}
	s := &service{
		pool: db.pool, broker: b, topics: topicsOf(db.schema), source: source,
		outbox: publisher, counts: newCounts(), logger: c.logger,
	}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	router, err := s.router()
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(db.pool, s.faults.doubleSome(b.Publisher), outbox.RelayConfig{Wake: publisher}, c.logger)
	if err != nil {
		return err
	}
	secrets := [][]byte{[]byte("the secret of last year"), []byte("the secret of this year")}
	server := &http.Server{Handler: s.endpoints(secrets), ReadTimeout: 30 * time.Second}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}

	// Everything below ends when this context does, and run returns when everything has ended.
	running, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(running)
	group.Go(func() error { return runRouter(running, router) })
	group.Go(func() error { return relay.Run(running) })
	group.Go(func() error { return serve(running, server, listener) })
	group.Go(func() error {
		defer stop()
		select {
		case <-running.Done():
			return context.Cause(running)
		case <-router.Running():
		}
		p := newProvider("http://"+listener.Addr().String(), len(s.topics.incoming), secrets)
		return s.prove(running, p, events, steps, out)
	})
	return group.Wait()
}
