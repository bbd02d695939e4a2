package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	serve    string        // an address: the console is there until the context ends, in place of the proof
	pace     time.Duration // of what the console shows
	logger   watermill.LoggerAdapter
}

// run starts everything, has the provider send its deliveries, waits until all is handled, and checks what has become of them.
// It returns nil only if every invariant holds; or, where it serves the console, when the context has ended.
func run(ctx context.Context, c config, out io.Writer) (err error) {
	if c.broker != ownDatabase {
		if err := broker.Check(c.broker); err != nil {
			return err
		}
	}
	if c.serve != "" && c.pace <= 0 {
		return fmt.Errorf("-pace %v: more than nothing is needed", c.pace)
	}
	source, events, steps, err := c.load()
	if err != nil {
		return err
	}

	db, err := openDatabase(ctx, "DATABASE_URL", c.database)
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
	listener, err := net.Listen("tcp", cmp.Or(c.serve, "127.0.0.1:0"))
	if err != nil {
		return err
	}
	defer listener.Close() // again, but for an error before it is served
	address := "http://" + listener.Addr().String()
	secrets := [][]byte{[]byte("the secret of last year"), []byte("the secret of this year")}
	p := newProvider(address, len(s.topics.incoming), secrets)
	mux := s.endpoints(secrets)
	server := &http.Server{Handler: mux, ReadTimeout: 30 * time.Second}

	// Everything below ends when this context does, and run returns when everything has ended.
	running, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(running)
	show := func() error { return s.prove(running, p, events, steps, out) }
	if c.serve != "" {
		console := newConsole(s, p)
		handler, err := console.handler(running)
		if err != nil {
			return err
		}
		mux.Handle("/", handler)
		show = func() error {
			fmt.Fprintf(out, "console: %s/\n", address)
			console.run(running, steps, c.pace)
			return nil
		}
	}
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
		return show()
	})
	return group.Wait()
}
