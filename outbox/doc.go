// Package outbox gives at-least-once publishing in per-key order: the messages that a transaction produces are written
// by that transaction, so they exist exactly if it commits, and a relay sends them to the broker afterwards.
//
//	publisher, err := outbox.NewPublisher(outbox.Config{})
//	...
//	// in a handler behind middleware.Transactional, or in any transaction of your own:
//	err = publisher.PublishContext(msg.Context(), "card-updated", event)
//	err = publisher.PublishTx(ctx, tx, "card-updated", event)
//	...
//	// in the same program or in another one:
//	relay, err := outbox.NewRelay(pool, broker, outbox.RelayConfig{Wake: publisher}, logger)
//	err = relay.Run(ctx)
//
// # Where it sits
//
//	broker -> Router -> Transactional: BEGIN, claim -> handler -> [outbox rows, COMMIT] -> Ack
//	                                                                     ... later: Relay -> broker
//
// # Order
//
// Messages of one key, across all topics, are first sent in the order in which their transactions committed. The key is
// the metadata partition_key unless Config.Key says otherwise; messages without one are their own key, and unordered. A
// transaction locks the keys it writes from its insert to its commit: 1,024 advisory locks for each outbox, which keys
// share. A message that the broker refuses holds up its key, and no other.
//
// # The table
//
// One row is one message, in plain columns: SQL and tools for change data capture read it as it is. It is created by
// Config.Schema, which is the file schema.sql. SchemaAdapter and OffsetsAdapter let the Publisher and the Subscriber of
// watermill-sql work on the same table, so that Watermill's own forwarder can fill it or drain it.
//
// # What it does not do
//
// It does not deliver once: after a crash, or when another relay takes over, messages are sent again, under the same
// UUID. Their consumers need package dedupe. It does not order messages of different keys. It loses what PostgreSQL
// loses, for example in a failover without synchronous replication.
package outbox
