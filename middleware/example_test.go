package middleware_test

import (
	"context"
	"database/sql"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

// A Router with everything in its place, outermost first.
func ExampleTransactional() {
	var (
		ctx        context.Context
		pool       *pgxpool.Pool
		broker     message.Publisher
		subscriber message.Subscriber
		router     *message.Router
	)
	publisher, err := outbox.NewPublisher(outbox.Config{})
	if err != nil {
		log.Fatal(err)
	}
	config := once.Config{
		Dedupe:   dedupe.Config{Key: dedupe.JSONField("id")},
		Ordering: ordering.Config{Position: ordering.JSONFields("card.id", "card.version")},
		Outbox:   publisher,
		OnOutcome: func(_ context.Context, o once.Outcome) {
			log.Println(o.Consumer, o.EventID, o.Kind, o.Attempts, o.Duration, o.Err)
		},
	}
	if err := once.InitializeSchema(ctx, once.Pgx(pool), config); err != nil {
		log.Fatal(err)
	}
	transactional, err := once.Transactional(once.Pgx(pool), config)
	if err != nil {
		log.Fatal(err)
	}
	poison, err := wmiddleware.PoisonQueueWithFilter(broker, "poison", once.ShouldPoison)
	if err != nil {
		log.Fatal(err)
	}
	retry := wmiddleware.Retry{
		MaxRetries: 5, InitialInterval: 100 * time.Millisecond, MaxInterval: 10 * time.Second, Multiplier: 2,
		ShouldRetry: once.ShouldRetry,
	}
	router.AddMiddleware(poison, retry.Middleware, wmiddleware.Recoverer, transactional)
	router.AddHandler("cards", "card-events", subscriber, "card-mails", publisher, func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := once.PgxTx(msg.Context())
		if _, err := tx.Exec(msg.Context(), `update cards set status = 'blocked' where id = $1`, "card-1"); err != nil {
			return nil, err
		}
		uuid, _ := once.DeriveUUID(msg.Context(), "mail") // the same if this event is ever handled again
		mail := message.NewMessage(uuid, []byte(`{"template": "blocked"}`))
		mail.Metadata.Set(outbox.PartitionKeyKey, "card-1") // mails of one card keep their order
		return []*message.Message{mail}, nil
	})
}

// A handler whose whole effect is in another system: there is nothing for a transaction to hold.
func ExampleLeased() {
	var (
		pool *pgxpool.Pool
		send func(ctx context.Context, idempotencyKey string, mail []byte) error
	)
	leased, err := once.Leased(pool, once.LeasedConfig{Consumer: "mailer"})
	if err != nil {
		log.Fatal(err)
	}
	_ = leased(func(msg *message.Message) ([]*message.Message, error) {
		key, _ := once.IdempotencyKey(msg.Context(), "send") // the same on every attempt
		return nil, send(msg.Context(), key, msg.Payload)    // its context ends when the lease is lost
	})
}

// A transactional handler puts the key into the message that asks for the call, and beside the order, where an operator finds it.
func ExampleIdempotencyKey() {
	_ = func(msg *message.Message) ([]*message.Message, error) { // behind Transactional, with an outbox
		ctx := msg.Context()
		key, _ := once.IdempotencyKey(ctx, "charge")
		if err := once.Queue(ctx, `insert into orders (id, charge_key) values ($1, $2)`, once.EventID(ctx), key); err != nil {
			return nil, err
		}
		uuid, _ := once.DeriveUUID(ctx, "charge")
		charge := message.NewMessage(uuid, msg.Payload)
		charge.Metadata.Set("charge_key", key)
		return []*message.Message{charge}, nil
	}
}

// The worker behind the outbox: a plain handler of messages that a transactional handler has published.
func ExampleIdempotencyKeyFor() {
	var (
		effects *dedupe.Effects // dedupe.NewEffects(pool, dedupe.EffectsConfig{})
		charge  func(ctx context.Context, idempotencyKey string, order []byte) (chargeID string, err error)
	)
	_ = func(msg *message.Message) error {
		key, err := once.IdempotencyKeyFor("charger", msg.UUID, "charge")
		if err != nil {
			return err
		}
		id, err := dedupe.Do(msg.Context(), effects, key, nil, func(ctx context.Context, key string) (string, error) {
			return charge(ctx, key, msg.Payload)
		})
		if err != nil {
			return err
		}
		log.Println("charged", id) // again if the message comes again, with the same id
		return nil
	}
}

// Over database/sql, for code that is written for it.
func ExampleSQL() {
	var db *sql.DB // of pgx's stdlib, lib/pq or another driver
	transactional, err := once.Transactional(once.SQL(db), once.Config{Consumer: "cards"})
	if err != nil {
		log.Fatal(err)
	}
	_ = transactional(func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := once.SQLTx(msg.Context())
		_, err := tx.ExecContext(msg.Context(), `update cards set status = 'blocked' where id = $1`, "card-1")
		return nil, err
	})
}

// Handlers of Watermill's cqrs component find the transaction on their context, and a bus over the outbox publishes in it.
// Messages get their ordering key in OnPublish.
func ExampleTransactional_cqrs() {
	type CardBlocked struct{ Card string }
	var publisher *outbox.Publisher
	bus, err := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
		OnPublish: func(p cqrs.OnEventSendParams) error {
			if e, ok := p.Event.(*CardBlocked); ok {
				p.Message.Metadata.Set(outbox.PartitionKeyKey, e.Card)
			}
			return nil
		},
		Marshaler: cqrs.JSONMarshaler{},
	})
	if err != nil {
		log.Fatal(err)
	}
	_ = cqrs.NewEventHandler("block-card", func(ctx context.Context, event *CardBlocked) error {
		tx, _ := once.PgxTx(ctx)
		if _, err := tx.Exec(ctx, `update cards set status = 'blocked' where id = $1`, event.Card); err != nil {
			return err
		}
		return bus.Publish(ctx, &CardBlocked{event.Card})
	})
}

// A write that the handler does not have to see costs no round trip.
func ExampleQueue() {
	_ = func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		return nil, once.Queue(ctx, `insert into ledger (event_id, amount) values ($1, $2)`, once.EventID(ctx), 1250)
	}
}
