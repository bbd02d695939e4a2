// Package dedupe lets each event change the database once per consumer: the first transaction that claims its id and
// commits is the only one, and every other delivery of the event is a duplicate.
//
//	once.Config{Dedupe: dedupe.Config{Key: dedupe.JSONField("id")}}
//
// or by hand, in any transaction of one's own:
//
//	claims := dedupe.Config{Key: dedupe.JSONField("id")}
//	id, err := claims.EventID(msg)
//	if err != nil {
//		return err // errors.Is(err, dedupe.ErrInvalidKey): retrying will not help
//	}
//	fresh, err := claims.Claim(ctx, tx, "orders", id)
//	if err != nil || !fresh {
//		return err // a duplicate is answered with success
//	}
//	// the work, in tx
//
// # Where it sits
//
// The claim is the first statement of the transaction, and commits or rolls back with the work. It is one row of the
// table watermill_processed_events, with the primary key (consumer, event id). The insert is the lock: of two copies
// at once the second waits until the first has ended, and is a duplicate if that one committed and fresh if it rolled
// back. (A look-up first and an insert after the work would let both through.) This holds in READ COMMITTED; in
// stricter isolation levels the second copy gets a serialization failure, SQLSTATE 40001, and has to begin again.
//
// # Which key
//
// The key is the id that the producer gave the event: the same in every retry, redelivery and replay of it, and another
// for every other event. The id of an object is no such key (one card has many events), nor is a hash of the payload
// (two events may be equal) or the id of a delivery (a replay has a new one).
//
// By default the key is the message's UUID. That serves where the producer publishes an event again under the same
// UUID, as an outbox does. A producer that makes a new UUID for each attempt needs an id in the payload or the metadata,
// and records that other software writes to Kafka have the UUID "": see JSONField, Metadata, CloudEventID, and Offset in
// the sub-package kafkakey for streams without ids.
//
// The scope of a claim is the consumer. Two services that share a database must not share a consumer's name, or one
// takes the other's events for duplicates.
//
// # Calls to other systems
//
// A charge or a mail cannot be rolled back, so it has no place in the transaction that claims the event. That publishes a
// message through the outbox, and the plain handler of that calls by Do:
//
//	effects, err := dedupe.NewEffects(pool, dedupe.EffectsConfig{})
//	key, err := once.IdempotencyKeyFor("charger", msg.UUID, "charge")
//	receipt, err := dedupe.Do(ctx, effects, key, order, func(ctx context.Context, idempotencyKey string) (Receipt, error) {
//		return provider.Charge(ctx, idempotencyKey, order)
//	})
//
// The intent is committed before the call, in the table watermill_effects and under a lease, and the outcome after it; later
// calls of Do with that key get the stored outcome. After a crash in between, a timeout or a panic it is unknown whether the call
// took effect. EffectsConfig.OnUnknown says what follows: the same call with the same idempotency key (Repeat), a question to the
// other system (Probe), or nothing until an operator has resolved it (Refuse). It is never taken for not done. See docs/effects.md.
//
// # What it does not do
//
// It does not order events: an old one that was never seen before is fresh (see package ordering). A claim does not cover
// calls to other systems, which no rollback takes back: those are for Do. Claims are kept until somebody deletes them (Forget
// does, for a deliberate second run), and an event that comes again after that is fresh; so handlers should be idempotent by nature
// where that is cheap: set state from the event rather than add to it, and keep the event id, unique, beside what must add up.
package dedupe
