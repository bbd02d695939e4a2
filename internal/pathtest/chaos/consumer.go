package main

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/watermill-once/watermill-once/internal/pathtest"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

// consume runs a consumer as a service does: PoisonQueue > Retry > Recoverer > Transactional > handler.
func (r role) consume(ctx context.Context, c consumer, pool *pgxpool.Pool, l *ledger) error {
	logger := watermill.NewStdLogger(false, false)
	publisher, err := outbox.NewPublisher(outbox.Config{})
	if err != nil {
		return err
	}
	s := &service{role: r, consumer: c, position: c.position(), ledger: l}
	if r.Sabotage == outside {
		if s.outside, err = pgxpool.New(ctx, r.URL); err != nil {
			return err
		}
	}
	config := once.Config{Consumer: c.Name, Outbox: publisher, OnOutcome: s.onOutcome}
	if c.Ordered && r.Sabotage != noOrdering {
		config.Ordering = ordering.Config{Position: s.position}
	}
	config.Dedupe.Disabled = r.Sabotage == noDedupe
	db := once.Pgx(pool)
	if r.second() {
		db = once.SQL(stdlib.OpenDBFromPool(pool))
	}
	transactional, err := once.Transactional(db, config)
	if err != nil {
		return err
	}

	broker, err := pathtest.NewPublisher(r.Brokers, logger)
	if err != nil {
		return err
	}
	shouldPoison := once.ShouldPoison
	if r.Sabotage == poisonAll {
		shouldPoison = func(error) bool { return true }
	}
	poison, err := wmiddleware.PoisonQueueWithFilter(broker, r.Prefix+topicPoison, shouldPoison)
	if err != nil {
		return err
	}
	retry := wmiddleware.Retry{MaxRetries: 5, InitialInterval: 5 * time.Millisecond, Multiplier: 2, ShouldRetry: shouldRetry}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(s.noteDelivery, poison, retry.Middleware, wmiddleware.Recoverer)
	subscriber, err := pathtest.NewSubscriber(r.Brokers, r.Prefix+c.Name, logger)
	if err != nil {
		return err
	}
	handler := router.AddHandler(c.Name, r.Prefix+c.Topic, subscriber, r.Prefix+topicOut, publisher, s.handle)
	handler.AddMiddleware(transactional)
	return router.Run(ctx)
}

// shouldRetry leaves outages to the broker, which delivers again. They would use up the retries, and an ordinary error behind them,
// the first of its kind, would send a good event to the poison queue.
func shouldRetry(params wmiddleware.RetryParams) bool {
	return once.ShouldRetry(params) && once.ShouldPoison(params.Err)
}

// service is a process of a consumer.
type service struct {
	role     role
	consumer consumer
	position ordering.PositionFunc
	ledger   *ledger
	outside  *pgxpool.Pool // of a saboteur; nil: there is none
}

func (s *service) noteDelivery(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		partition, _ := wkafka.MessagePartitionFromCtx(msg.Context())
		offset, _ := wkafka.MessagePartitionOffsetFromCtx(msg.Context())
		s.ledger.note(delivered, msg.UUID, "%s, partition %d, offset %d", s.consumer.Topic, partition, offset)
		return next(msg)
	}
}

func (s *service) onOutcome(_ context.Context, o once.Outcome) {
	s.ledger.note(outcome, o.EventID, "%v after %v, attempts: %d, error: %v", o.Kind, o.Duration.Round(time.Microsecond), o.Attempts, o.Err)
}

var errWhim = errors.New("it failed, as code does now and then")

// handle applies an event. Now and then it fails, panics or takes its time, before its work or after.
func (s *service) handle(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	position, err := s.position(msg)
	if err != nil {
		return nil, once.Permanent(err)
	}
	s.ledger.note(attempted, msg.UUID, "%s to version %d", position.Entity, position.Version)
	done := effect{Consumer: s.consumer.Name, EventID: once.EventID(ctx), Entity: position.Entity, Version: position.Version}
	if done.EventID == "" {
		done.EventID = msg.UUID // there are no claims to need it
	}
	var out []*message.Message
	if s.consumer.Produces {
		msg, err := outgoing(ctx, &done)
		if err != nil {
			return nil, err
		}
		out = []*message.Message{msg}
	}
	if err := s.apply(ctx, done); err != nil {
		return nil, err
	}
	switch rand.IntN(200) {
	case 0:
		return nil, errWhim
	case 1:
		panic(errWhim)
	case 2:
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
	}
	return out, nil
}

func outgoing(ctx context.Context, done *effect) (*message.Message, error) {
	uuid, ok := once.DeriveUUID(ctx, "out")
	if !ok {
		uuid = watermill.NewUUID()
	}
	done.UUID = uuid
	payload, err := json.Marshal(event{done.Entity, done.Version})
	if err != nil {
		return nil, err
	}
	msg := message.NewMessage(uuid, payload)
	msg.Metadata.Set(outbox.PartitionKeyKey, done.key())
	msg.Metadata.Set(causeKey, done.EventID)
	return msg, nil
}

// causeKey is metadata for people who look for what led to a message.
const causeKey = "cause"

func (s *service) apply(ctx context.Context, e effect) error {
	args := []any{e.Consumer, e.EventID, e.Entity, e.Version, e.UUID, s.role.Name}
	if s.outside != nil {
		_, err := s.outside.Exec(ctx, apply, args...)
		return err
	}
	if tx, ok := once.PgxTx(ctx); ok {
		_, err := tx.Exec(ctx, apply, args...)
		return err
	}
	tx, ok := once.SQLTx(ctx)
	if !ok {
		return errors.New("there is no transaction")
	}
	_, err := tx.ExecContext(ctx, apply, args...)
	return err
}
