// Package kafkasink sends messages to Kafka many at a time, in per-key order: the broker for outbox.Relay.
//
//	sink, err := kafkasink.New(brokers, kafkasink.Config{})
//	...
//	defer sink.Close()
//	relay, err := outbox.NewRelay(pool, sink, outbox.RelayConfig{Wake: publisher}, logger)
//	err = relay.Run(ctx)
//
// It is apart from package outbox because it imports sarama and all that comes with it. watermill-kafka's Publisher works
// as a broker for the relay, too, with the settings that PublisherConfig tells for it; it sends one record per request.
//
// # Where it sits
//
//	handler -> outbox rows, COMMIT     ... later:   outbox.Relay -> [Sink] -> Kafka -> watermill-kafka's Subscriber
//
// # Order
//
// A batch goes out as one request to each broker, in it one record batch for each partition, which Kafka stores whole or
// not at all. So messages of one key for one topic travel together; where a key's next message is for another topic, or does
// not fit in, it waits for the answer. When something fails, the rest of its key is held back: ErrHeldBack.
//
// sarama's own producers do not do that. When a request fails for good, they take a new identity, under which the broker
// accepts what comes behind: of 500 records of one key sent by SendMessages with the safest settings, the first refused, up
// to half were stored. Where several goroutines publish, a failure of one makes messages of others vanish that were acknowledged:
// see PublisherConfig. And one record that is too large fails alone, or fails all that is in its batch.
//
// A key's order needs its partition. It changes when partitions are added to the topic: let the consumers catch up first.
//
// # Errors
//
// Lost requests and answers are repeated, up to Sarama.Producer.Retry.Max times: the broker knows a repetition and stores
// nothing twice. What fails after that is for the caller to send again, and may then be stored twice. A record batch that
// is refused for one of its records is divided until that one is found: it alone fails, with an error whose Permanent method
// says true.
//
// What is down (a topic that is missing, a partition without a leader) is waited for once, half a second by default, and
// after that costs a batch one attempt until it is back. A broker that has frozen holds up the whole batch, and those behind
// it, until Sarama.Net.ReadTimeout.
//
// # What it does not do
//
// It does not deliver once: consumers need package dedupe. It uses neither transactions nor sarama's interceptors.
package kafkasink
