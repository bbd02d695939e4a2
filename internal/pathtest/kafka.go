package pathtest

import (
	"context"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watermill-once/watermill-once/outbox"
)

// Partitions is how many each topic has.
const Partitions = 4

// Longest bounds every wait of a test.
const Longest = 2 * time.Minute

// Kafka is a broker, for one test: an embedded one, or a server.
type Kafka struct {
	Cluster *kfake.Cluster // nil for a server

	brokers []string
}

// StartKafka starts a broker with the given topics. It ends with the test, after whatever the test has started later.
func StartKafka(t testing.TB, topics ...string) *Kafka {
	t.Helper()
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.SeedTopics(Partitions, topics...),
		kfake.GroupMinSessionTimeout(100*time.Millisecond), // a killed member is missed soon
	)
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	return embedded(cluster)
}

func embedded(cluster *kfake.Cluster) *Kafka { return &Kafka{cluster, cluster.ListenAddrs()} }

// Server is a Kafka that is running.
func Server(brokers []string) *Kafka { return &Kafka{brokers: brokers} }

// Create makes topics, and waits until they can be written to: a server answers that they are made before their leaders know of
// it, and then that there are none.
func (k *Kafka) Create(t testing.TB, partitions int32, settings map[string]*string, topics ...string) {
	t.Helper()
	k.admin(t, func(ctx context.Context, admin *kadm.Client) {
		created, err := admin.CreateTopics(ctx, partitions, 1, settings, topics...)
		require.NoError(t, err)
		require.NoError(t, created.Error())
		for {
			ends, err := admin.ListEndOffsets(ctx, topics...) // the leaders answer
			if err == nil && ends.Error() == nil {
				return
			}
			select {
			case <-ctx.Done():
				require.Fail(t, "the topics have no leaders", "%v: %v %v", topics, err, ends.Error())
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}

// WaitMembers waits until a group has so many members, and all partitions are theirs.
func (k *Kafka) WaitMembers(t testing.TB, group string, n int) {
	t.Helper()
	k.admin(t, func(ctx context.Context, admin *kadm.Client) {
		for {
			groups, err := admin.DescribeGroups(ctx, group)
			if g := groups[group]; err == nil && g.State == "Stable" && len(g.Members) == n {
				return
			}
			select {
			case <-ctx.Done():
				require.Fail(t, "the group is not as it should be", "%s: %+v %v", group, groups[group], err)
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
}

// Brokers is where it is to be reached, from other processes too.
func (k *Kafka) Brokers() []string { return k.brokers }

// NewPublisher makes a Publisher with settings under which no message gets lost that was taken: see kafkasink.PublisherConfig for why
// Idempotent is not among them. It serves as the poison queue too, for records that have no UUID to be spread by.
func NewPublisher(brokers []string, logger watermill.LoggerAdapter) (*wkafka.Publisher, error) {
	config := wkafka.DefaultSaramaSyncPublisherConfig()
	config.Version = sarama.V2_1_0_0
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1
	config.Metadata.Retry.Backoff = 50 * time.Millisecond
	return wkafka.NewPublisher(wkafka.PublisherConfig{
		Brokers:               brokers,
		Marshaler:             wkafka.NewWithPartitioningMarshaler(outbox.PartitionKey),
		OverwriteSaramaConfig: config,
	}, logger)
}

// NewSubscriber makes a Subscriber that begins with the oldest record and commits its offsets soon.
func NewSubscriber(brokers []string, group string, logger watermill.LoggerAdapter) (*wkafka.Subscriber, error) {
	config := wkafka.DefaultSaramaSubscriberConfig()
	config.Version = sarama.V2_1_0_0 // at 2.4 and above, this sarama gets nothing from this broker
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 20 * time.Millisecond
	config.Consumer.Group.Session.Timeout = time.Second
	config.Consumer.Group.Heartbeat.Interval = 50 * time.Millisecond
	config.Consumer.Group.Rebalance.Timeout = 2 * time.Second
	config.Net.ReadTimeout = 5 * time.Second // bounds the wait of one that joins, as it is closed, a group that waits for another
	config.Metadata.Retry.Backoff = 50 * time.Millisecond
	return wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers:               brokers,
		ConsumerGroup:         group,
		OverwriteSaramaConfig: config,
		NackResendSleep:       5 * time.Millisecond,
		ReconnectRetrySleep:   50 * time.Millisecond,
	}, logger)
}

// RefuseCommits has every offset commit fail until it is called off: consumers that come later begin where none had been.
func (k *Kafka) RefuseCommits() (callOff func()) {
	return k.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.UnknownServerError, Count: -1}).Remove
}

// Produce writes records as a program does that has never heard of Watermill.
func (k *Kafka) Produce(t testing.TB, records ...*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), Longest)
	defer cancel()
	require.NoError(t, client.ProduceSync(ctx, records...).FirstErr())
}

// Read gives the records that a topic has now, those of a partition in their order.
func (k *Kafka) Read(t testing.TB, topic string) []*kgo.Record {
	t.Helper()
	missing := k.ends(t, topic)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(k.Brokers()...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), Longest)
	defer cancel()

	var records []*kgo.Record
	for len(missing) > 0 {
		fetches := client.PollFetches(ctx)
		require.NoError(t, fetches.Err0())
		fetches.EachRecord(func(r *kgo.Record) {
			end, missed := missing[r.Partition]
			if !missed {
				return
			}
			records = append(records, r)
			if r.Offset == end-1 {
				delete(missing, r.Partition)
			}
		})
	}
	return records
}

// Len is how many records a topic has.
func (k *Kafka) Len(t testing.TB, topic string) (n int) {
	t.Helper()
	for _, end := range k.ends(t, topic) {
		n += int(end)
	}
	return n
}

// ends gives the next offset of each partition that has records.
func (k *Kafka) ends(t testing.TB, topic string) map[int32]int64 {
	t.Helper()
	ends := map[int32]int64{}
	k.admin(t, func(ctx context.Context, admin *kadm.Client) {
		offsets, err := admin.ListEndOffsets(ctx, topic)
		require.NoError(t, err)
		require.NoError(t, offsets.Error())
		offsets.Each(func(o kadm.ListedOffset) {
			if o.Offset > 0 {
				ends[o.Partition] = o.Offset
			}
		})
	})
	return ends
}

// WaitConsumed waits until a group has committed all that a topic has.
func (k *Kafka) WaitConsumed(t testing.TB, group, topic string) {
	t.Helper()
	ends := k.ends(t, topic)
	k.admin(t, func(ctx context.Context, admin *kadm.Client) {
		for {
			committed, err := admin.FetchOffsets(ctx, group)
			missing := map[int32]int64{}
			for partition, end := range ends {
				if at, _ := committed.Lookup(topic, partition); at.At < end {
					missing[partition] = at.At
				}
			}
			if len(missing) == 0 {
				return
			}
			select {
			case <-ctx.Done():
				require.Fail(t, "not consumed in time", "group %s is at %v of topic %s, which ends at %v: %v", group, missing, topic, ends, err)
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}

func (k *Kafka) admin(t testing.TB, use func(ctx context.Context, admin *kadm.Client)) {
	t.Helper()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(k.Brokers()...),
		kgo.MetadataMinAge(10*time.Millisecond), // by default it believes for 5 s what it was told of a topic
	)
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), Longest)
	defer cancel()
	use(ctx, kadm.NewClient(client))
}
