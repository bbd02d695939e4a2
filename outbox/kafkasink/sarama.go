package kafkasink

import (
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
)

// PublisherConfig gives settings under which Kafka neither loses what it has taken, nor doubles nor reorders it by
// itself. They are for New.
//
// They are for watermill-kafka's own Publisher, too, as OverwriteSaramaConfig, with Producer.Idempotent set to false. With it,
// sarama's producer loses messages: it numbers them, and begins again at 0, under a new epoch, whenever one fails for good. One that
// was numbered before can then go out under the new epoch, and the next of that number is taken for its repetition:
// acknowledged, and not stored. Without numbers, what is sent again after a lost answer may be stored twice. Give that Publisher
// kafka.NewWithPartitioningMarshaler(outbox.PartitionKey), too: its default sends messages without a key.
func PublisherConfig() *sarama.Config {
	config := kafka.DefaultSaramaSyncPublisherConfig()

	// The oldest protocol with all that is needed here. Brokers of every later version speak it.
	config.Version = sarama.V2_1_0_0

	// A record counts as taken when all in-sync replicas have it. By default the leader's word is enough, and what only
	// the leader has is lost with it. How many replicas must be in sync is the topic's min.insync.replicas.
	config.Producer.RequiredAcks = sarama.WaitForAll

	// The broker recognizes a repeated request, so that one whose answer was lost is not stored twice.
	config.Producer.Idempotent = true

	// With more open requests, a later one can be stored before an earlier one that has to be repeated. The default is 5.
	config.Net.MaxOpenRequests = 1

	// Long enough for most changes of a partition's leader, half a second in all. What fails after that is for the caller
	// to send again, the relay for example, which lets other keys go on meanwhile.
	config.Producer.Retry.Max = 5
	config.Producer.Retry.Backoff = 100 * time.Millisecond

	// Watermill's default is 2 s, three times: a topic that does not exist would hold up the others for that long.
	config.Metadata.Retry.Backoff = 250 * time.Millisecond

	// Longer than the broker waits for its replicas (Producer.Timeout, 10 s), so that its answer is not missed; shorter
	// than the default of 30 s, for that is how long a broker that has frozen holds up what is sent to others.
	config.Net.DialTimeout = 10 * time.Second
	config.Net.ReadTimeout = 15 * time.Second
	config.Net.WriteTimeout = 15 * time.Second
	return config
}

// SubscriberConfig gives settings under which a consumer misses nothing, for watermill-kafka's Subscriber, as
// OverwriteSaramaConfig. What it gets twice is for package dedupe.
func SubscriberConfig() *sarama.Config {
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Version = sarama.V2_1_0_0

	// Where a group begins that has no offsets yet, or whose offsets are no longer there. By default it begins with what
	// comes next: what was published before its first start, or past a lapse, is never seen.
	config.Consumer.Offsets.Initial = sarama.OffsetOldest

	// Records of transactions that their producer has aborted were never sent.
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	return config
}
