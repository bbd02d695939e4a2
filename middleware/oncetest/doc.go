// Package oncetest proves in go test that a handler is safe: that events which come twice, at once, after a crash or out of order do no
// harm. The handler is the real one, behind whatever middleware it has or none, on a real PostgreSQL.
//
//	func TestPayments(t *testing.T) {
//		setup := func(t testing.TB, db oncetest.Database) message.HandlerFunc {
//			require.NoError(t, createTables(t.Context(), db.Pool))
//			transactional, err := once.Transactional(once.Pgx(db.Pool), once.Config{})
//			require.NoError(t, err)
//			return transactional(handlePayment)
//		}
//		oncetest.Prove(t, setup, []*message.Message{paid, refunded})
//	}
//
// # The proofs
//
//   - Replay: an event that comes again changes no row, not even a time of change, and sends no message.
//   - Concurrent: deliveries of one event at the same moment are as one.
//   - Crash: a process that dies at any point, or a connection that breaks, and the redelivery after it, are as one delivery.
//   - OutOfOrder: events that overtake each other lead to the state of the right order. Prove runs it only where Config.Position is set.
//   - Amnesia: the handler does without its claims. This is a report, unless Config asks for more. Prove runs it only with
//     Config.MustSurviveAmnesia.
//
// The others Prove always runs. So Prove without a Config says nothing about order; OutOfOrder can be called by itself, as each of
// them. A failure prints a shortest sequence of deliveries that shows it, the rows and messages that differ, and the seed for
// Config.Seed.
//
// # How it works
//
// Each run has a database of its own on the PostgreSQL of package pgserver, which is started for the process at the first use, and a
// Router that calls the handler, publishes what it returns, and acks. What is compared are the rows of all tables, but those of
// Watermill and of this module (watermill_...), and the messages that have left: those that the handler returned, that it
// published on Database.Broker, and that stand in an outbox (of this module, or of watermill-sql). Where two runs are compared, what
// is other in every run is left out: columns that are an identity or have a default that calls a function which is not immutable
// (now(), nextval, gen_random_uuid()), what refers to them by a foreign key or is generated from them, and Config.IgnoreColumns. Of a
// message, the UUID does not count.
//
// Crash and Concurrent have a proxy between the handler and the server, which follows PostgreSQL's protocol: so it does not matter by
// what driver the handler talks, as long as it uses Database.URL or Database.Pool, unencrypted as they are.
//
// # What it does not do
//
// It proves something about the events that it is given: give it those that a handler treats differently, two of one object at
// least, and one that comes back to an earlier state. It does not see what a handler does outside of the database and the
// Broker; so give what stands in for another service the Broker. It does not play the death of the database: see the Stop and
// Kill of package pgserver. A sequence number that is skipped, a column with a default from the clock that a handler sets itself: such
// things go unseen between runs. It does not run on Windows.
package oncetest
