// Package middleware makes a Watermill handler's database changes and outgoing messages happen once per event: at-least-once
// delivery, effectively-once processing, at-least-once publishing in per-key order.
//
//	pool, err := pgxpool.New(ctx, databaseURL)
//	publisher, err := outbox.NewPublisher(outbox.Config{})
//	once, err := middleware.Transactional(middleware.Pgx(pool), middleware.Config{
//		Outbox: publisher,
//	})
//	handler := router.AddHandler("cards", "card-events", subscriber, "card-mails", publisher, handle)
//	handler.AddMiddleware(once)
//
//	func handle(msg *message.Message) ([]*message.Message, error) {
//		tx, _ := middleware.PgxTx(msg.Context())
//		_, err := tx.Exec(msg.Context(), "update cards set ...")
//		return []*message.Message{mail}, err
//	}
//
// # Where it stands
//
//	broker -> Router -> [BEGIN + claim + version] -> handler(tx) -> [queued writes + outbox rows + COMMIT] -> Ack
//	... later: outbox.Relay -> broker
//
// Each delivery is one transaction of its own, READ COMMITTED, on PostgreSQL. A duplicate and a stale event are acked, and the
// handler is not called. An error, a panic or an ended context rolls everything back; the message is nacked, and its next delivery
// finds nothing of the last. A crash does the same. Where COMMIT's answer is lost, the next delivery finds out by the claim.
//
// Order of middleware, outermost first: PoisonQueue, Retry, Recoverer, Transactional.
//
//	poison, err := wmiddleware.PoisonQueueWithFilter(broker, "poison", middleware.ShouldPoison)
//	retry := wmiddleware.Retry{MaxRetries: 3, ShouldRetry: middleware.ShouldRetry}
//
// # What it does not do
//
// It cannot roll back what is not in this database: a call to another system belongs behind the outbox, with IdempotencyKey.
// It does not see a handler that acks its message by itself, nor one whose errors are turned into nil before they come here, as by
// Watermill's cqrs with AckCommandHandlingErrors. Publisher decorators and the Router's metrics see no produced messages: those leave
// by the relay. It never uses the transaction of a watermill-sql subscriber: a nack there resends in the same transaction, without a
// rollback.
package middleware
