// Package pathtest tests the whole path of a message, over Kafka: Kafka, middleware, outbox, relay, Kafka.
//
// Kafka is an embedded stand-in that speaks its protocol over TCP: no service is needed, and several processes can share it. What
// the tests break is on the path: records are doubled and shuffled, consumers and relays are killed, groups fall apart. What
// they look for is always the same:
//
//   - effects = distinct events
//   - no entity goes backwards
//   - every committed message leaves the outbox at least once, in key order
//   - nothing leaves that was not committed
package pathtest
