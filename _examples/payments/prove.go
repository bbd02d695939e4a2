package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/watermill-once/watermill-once/dedupe"
)

// prove makes one pass: everything starts, the orders come in, and when all is quiet the tables are compared with the provider's ledger.
func (c config) prove(ctx context.Context, p pass, out io.Writer) (err error) {
	fmt.Fprintf(out, "\n%s\n", p.title)
	db, err := createSchema(ctx, c.database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.drop()) }()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w := &workers{count: 3, running: map[string]*process{}, settings: settings{
		Database: db.url, Broker: c.broker, Provider: "http://" + listener.Addr().String(),
		Keys: p.keys, OnUnknown: p.onUnknown, Run: db.name, Verbose: c.verbose,
	}}
	if c.broker == ownDatabase {
		w.settings.Broker = db.url
	}
	t := &trial{pass: p, planned: plan(c.seed, c.orders, c.kills), kills: c.kills, out: out}
	t.provider = newProvider(t.planned, p.keys, w.kill)
	if t.service, err = openService(ctx, w.settings, "operator"); err != nil {
		return errors.Join(err, listener.Close())
	}
	defer func() { err = errors.Join(err, t.service.close()) }()
	if err := t.service.prepare(ctx); err != nil {
		return errors.Join(err, listener.Close())
	}

	// All of these end when their context does.
	running, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(running)
	group.Go(func() error { return serve(running, &http.Server{Handler: t.provider.handler()}, listener) })
	group.Go(func() error { return w.run(running) })
	group.Go(func() error {
		defer stop()
		return t.run(running)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	// Once more, now that nobody is left who could charge.
	facts, err := t.facts(ctx)
	if err != nil {
		return err
	}
	return checkResolved(facts)
}

// serve answers until the context ends.
func serve(ctx context.Context, server *http.Server, listener net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// trial is the course of a pass.
type trial struct {
	pass     pass
	planned  []planned
	kills    int
	provider *provider
	service  *service
	out      io.Writer
}

func (t *trial) run(ctx context.Context) error {
	// Each order comes twice: brokers and producers do this by themselves, sooner or later.
	for range 2 {
		for _, o := range t.planned {
			msg, err := o.message()
			if err != nil {
				return err
			}
			if err := t.service.broker.Publisher.Publish(t.service.topic(orders), msg); err != nil {
				return err
			}
		}
	}
	facts, err := t.settled(ctx)
	if err != nil {
		return err
	}
	counts, err := t.service.effects.Count(ctx)
	if err != nil {
		return err
	}
	t.report(facts)
	if err := errors.Join(check(facts, t.pass.onUnknown), checkJournal(facts, counts.Unknown)); err != nil {
		return err
	}
	if t.pass.onUnknown != dedupe.Refuse {
		return nil
	}

	resolved, err := t.service.resolveAll(ctx)
	if err != nil {
		return err
	}
	if facts, err = t.settled(ctx); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "an operator has looked up %d orders at the provider\n", resolved)
	t.report(facts)
	return checkResolved(facts)
}

// settleWithin bounds the wait for the last order: it is far more than they need.
const settleWithin = 2 * time.Minute

// settled waits until every order has been dealt with, every paid one has its receipt, and all workers have been killed that were to be.
func (t *trial) settled(ctx context.Context) ([]fact, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, settleWithin, fmt.Errorf("not all orders were dealt with within %v", settleWithin))
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		facts, err := t.facts(ctx)
		if err != nil || t.quiet(facts) {
			return facts, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), check(facts, t.pass.onUnknown))
		case <-ticker.C:
		}
	}
}

func (t *trial) quiet(facts []fact) bool {
	for _, f := range facts {
		if f.status == "" || f.status == "placed" || f.status == "paid" && f.mails == 0 {
			return false
		}
	}
	return t.provider.killed() == t.kills
}

const orderStatus = `
select id, status
from orders`

// facts brings together what the shop believes and what the provider knows.
func (t *trial) facts(ctx context.Context) ([]fact, error) {
	rows, err := t.service.pool.Query(ctx, orderStatus)
	if err != nil {
		return nil, fmt.Errorf("orders: %w", err)
	}
	status := map[string]string{}
	var id, now string
	if _, err := pgx.ForEachRow(rows, []any{&id, &now}, func() error { status[id] = now; return nil }); err != nil {
		return nil, fmt.Errorf("orders: %w", err)
	}
	facts := make([]fact, len(t.planned))
	for i, o := range t.planned {
		facts[i] = t.provider.fact(o.ID)
		facts[i].status, facts[i].poor = status[o.ID], o.declined
	}
	return facts, nil
}
