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
// share. Each message leaves with its place in that order, SequenceKey, for consumers to tell old from new
// (ordering.OutboxSequence).
//
// # The relay
//
// Run as many relays as you like, on as many machines: they divide the keys among themselves, by shards, and when one
// goes or dies the others take its shards over within seconds. Many keys are with the broker at a time, and of one key one
// message; a broker that is a BatchPublisher gets whole batches. A relay hears of new messages by RelayConfig.Wake, and
// from other processes by Publisher.Notify; what neither tells it, it finds by polling.
//
// A message that the broker refuses holds up its key, and no other. It is tried again after 100 ms, then after twice as
// long each time, up to 30 s. After RelayConfig.MaxAttempts it is parked: see Config.ListParked, CountParked, RetryParked
// and DiscardParked, which work from any program. What cannot be read is parked at once. While the broker takes nothing at
// all, nothing is parked, but for a message that has failed for MaxAttempts hours while no other key had anything to send.
// Of a topic that has refused many messages in a row, new ones are tried one at a time, ten in a second at most, until it
// takes one; other topics do not wait for it.
//
// A row that somebody else has locked, by "select .. for update" or an update that is not committed, holds up nothing: the
// relay sends it, and removes it when the lock is gone. Its key goes on meanwhile. A relay that ends or dies before that
// leaves the row to be sent again, behind newer messages of its key that were removed. Those that wait to be removed count
// towards RelayConfig.BatchSize: the relay waits while that many are locked. A lock on the whole table is waited for.
//
// A relay needs sessions of its own. Behind PgBouncer in transaction or statement mode it refuses to work; publishers do
// not mind.
//
// # The table
//
// One row is one message, in plain columns: SQL and tools for change data capture read it as it is. It is created by
// Config.Schema, which is the file schema.sql. SchemaAdapter and OffsetsAdapter let the Publisher and the Subscriber of
// watermill-sql work on the same table, so that Watermill's own forwarder can fill it or drain it. Rows may be written by
// hand: they are sent, but in order only if no two transactions write the same key at a time.
//
// # What it does not do
//
// It does not deliver once: after a crash, or when another relay takes over, messages are sent again, under the same
// UUID, and a second copy may arrive behind newer messages of its key. Their consumers need package dedupe. It does not
// order messages of different keys. It loses what PostgreSQL loses, for example in a failover without synchronous
// replication.
package outbox
