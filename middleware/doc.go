// Package middleware makes a Watermill handler's database changes and outgoing messages happen once per event: at-least-once
// delivery, effectively-once processing, at-least-once publishing in per-key order. Its name is that of Watermill's own package: import
// it as once.
//
//	pool, err := pgxpool.New(ctx, databaseURL)
//	publisher, err := outbox.NewPublisher(outbox.Config{})
//	transactional, err := once.Transactional(once.Pgx(pool), once.Config{Outbox: publisher})
//	handler := router.AddHandler("cards", "card-events", subscriber, "card-mails", publisher, handle)
//	handler.AddMiddleware(transactional)
//
//	func handle(msg *message.Message) ([]*message.Message, error) {
//		tx, _ := once.PgxTx(msg.Context()) // true behind Transactional on once.Pgx
//		_, err := tx.Exec(msg.Context(), "update cards set ...")
//		return []*message.Message{mail}, err
//	}
//
// The publisher that AddHandler asks for is not called, since the middleware returns no messages. Give it the outbox's, which
// refuses to publish outside a transaction.
//
// # Where it stands
//
//	broker -> Router -> [BEGIN + claim + version] -> handler(tx) -> [queued writes + outbox rows + COMMIT] -> Ack
//	... later: outbox.Relay -> broker
//
// Each delivery is one transaction of its own, READ COMMITTED, on PostgreSQL. A duplicate and a stale event are acked, and the
// handler is not called. An error, a panic or an ended context rolls everything back; the message is nacked, and its next delivery
// finds nothing of the last. A crash does the same. Where COMMIT's answer is lost, the next delivery finds out by the claim. (A
// handler that ends the transaction by raw SQL breaks this, and gets ErrTxEnded.)
//
// Order of middleware, outermost first: PoisonQueue, Retry, Recoverer, Transactional.
//
//	poison, err := wmiddleware.PoisonQueueWithFilter(broker, "poison", once.ShouldPoison)
//	retry := wmiddleware.Retry{
//		MaxRetries: 5, InitialInterval: 100 * time.Millisecond, MaxInterval: 10 * time.Second, Multiplier: 2,
//		ShouldRetry: once.ShouldRetry,
//	}
//
// What is still failing after the retries, and is no outage, goes to the poison queue.
//
// # What is kept
//
// Claims and versions are kept for ever, unless a Sweeper is given an age for them; MaxAge then refuses what is older. Forget is for a
// deliberate second run. See docs/retention.md.
//
// # What it does not do
//
// It cannot roll back what is not in this database. A call to another system belongs behind the outbox: in a plain handler of its own,
// by dedupe.Do with a key of IdempotencyKeyFor, or in one with Leased in place of Transactional. See docs/effects.md.
//
// It does not see a handler that acks its message by itself, nor one whose errors are turned into nil before they come here, as by
// Watermill's cqrs with AckCommandHandlingErrors. Publisher decorators and the Router's metrics see no produced messages: those leave
// by the relay. It never uses the transaction of a watermill-sql subscriber: a nack there resends in the same transaction, without a
// rollback.
package middleware
