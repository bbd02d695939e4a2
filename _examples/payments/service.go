package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/watermill-once/watermill-once/_examples/broker"
	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
)

// settings are what a worker is told by its parent.
type settings struct {
	Database  string // a URL; secret
	Broker    string // a URL; secret
	Provider  string // a URL
	Keys      bool   // the provider honours idempotency keys
	OnUnknown dedupe.OnUnknown
	Run       string // names the topics, so that a broker that stays has nothing of another run in them
	Verbose   bool
}

// lease is short here for the sake of a short run: a call counts as in flight for so long after its process has died. The
// default of 30 s is a better one for services, whose database may be away for some seconds.
const lease = time.Second

// service takes orders, charges cards and mails receipts. Any number of processes run it.
type service struct {
	settings
	pool     *pgxpool.Pool
	broker   *broker.Broker
	outbox   *outbox.Publisher
	effects  *dedupe.Effects
	provider client
	logger   watermill.LoggerAdapter
}

func openService(ctx context.Context, s settings, name string) (_ *service, err error) {
	svc := &service{settings: s, provider: newClient(s.Provider, name, s.Keys), logger: newLogger(s.Verbose)}
	defer func() {
		if err != nil {
			err = errors.Join(err, svc.close())
		}
	}()
	if svc.pool, err = pgxpool.New(ctx, s.Database); err != nil {
		return nil, err
	}
	if svc.outbox, err = outbox.NewPublisher(outbox.Config{}); err != nil {
		return nil, err
	}
	effects := dedupe.EffectsConfig{Lease: lease, OnUnknown: s.OnUnknown}
	if s.OnUnknown == dedupe.Probe {
		effects.Probe = svc.probe
	}
	if svc.effects, err = dedupe.NewEffects(svc.pool, effects); err != nil {
		return nil, err
	}
	svc.broker, err = broker.Open(ctx, s.Broker, svc.logger)
	return svc, err
}

//go:embed tables.sql
var tables string

// prepare makes tables and topics.
func (s *service) prepare(ctx context.Context) error {
	if err := once.InitializeSchema(ctx, once.Pgx(s.pool)); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, tables); err != nil {
		return fmt.Errorf("tables: %w", err)
	}
	for topic, group := range map[string]string{orders: orders, charges: charges, receipts: receipts, poison: "operator"} {
		if err := s.broker.Create(ctx, s.topic(topic), s.topic(group)); err != nil {
			return err
		}
	}
	return nil
}

// run handles messages until the context ends, and then finishes what it has begun.
func (s *service) run(ctx context.Context) error {
	router, err := s.router()
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(s.pool, s.broker.Publisher, outbox.RelayConfig{Wake: s.outbox}, s.logger)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return runRouter(ctx, router) })
	group.Go(func() error { return relay.Run(ctx) })
	return group.Wait()
}

func (s *service) close() error {
	var err error
	if s.broker != nil {
		err = s.broker.Close()
	}
	if s.pool != nil {
		s.pool.Close()
	}
	return err
}
