package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-once/watermill-once/outbox"
)

const (
	brokerName = "broker"
	partitions = 4
	minSession = 100 * time.Millisecond // of consumers: a killed member is missed soon
)

// broker is the Kafka under test, as the rig sees it.
type broker struct {
	addresses []string
	prefix    string   // of topics and groups
	process   *process // nil: somebody else's, and not to be killed
	client    *kgo.Client
	admin     *kadm.Client
}

func newBroker(addresses []string, prefix string, p *process) (*broker, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(addresses...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RequestTimeoutOverhead(2*time.Second),
		kgo.RetryTimeout(time.Minute),
	)
	if err != nil {
		return nil, err
	}
	return &broker{addresses, prefix, p, client, kadm.NewClient(client)}, nil
}

func (b *broker) createTopics(ctx context.Context) error {
	return patiently(ctx, func(ctx context.Context) error {
		responses, err := b.admin.CreateTopics(ctx, partitions, 1, nil, b.prefix+topicEvents, b.prefix+topicOut, b.prefix+topicPoison)
		if err != nil {
			return err
		}
		return responses.Error()
	})
}

// patiently tries until it works, for as long as a broker may be down.
func patiently(ctx context.Context, try func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil || !pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// ends gives where the partitions of a topic end.
func (b *broker) ends(ctx context.Context, topic string) (map[int32]int64, error) {
	listed, err := b.admin.ListEndOffsets(ctx, b.prefix+topic)
	if err != nil {
		return nil, err
	}
	if err := listed.Error(); err != nil {
		return nil, err
	}
	ends := map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	return ends, nil
}

// positions gives what a group has committed.
func (b *broker) positions(ctx context.Context, group, topic string) (map[int32]int64, error) {
	fetched, err := b.admin.FetchOffsets(ctx, b.prefix+group)
	if err != nil {
		return nil, err
	}
	at := map[int32]int64{}
	fetched.Each(func(o kadm.OffsetResponse) {
		if o.Topic == b.prefix+topic {
			at[o.Partition] = o.At
		}
	})
	return at, nil
}

// rewind sets a group back by n records in each partition. It waits until the group has no members.
func (b *broker) rewind(ctx context.Context, group, topic string, n int) error {
	return patiently(ctx, func(ctx context.Context) error {
		at, err := b.positions(ctx, group, topic)
		if err != nil {
			return err
		}
		offsets := kadm.Offsets{}
		for partition, offset := range at {
			offsets.AddOffset(b.prefix+topic, partition, max(0, offset-int64(n)), -1)
		}
		return b.admin.CommitAllOffsets(ctx, b.prefix+group, offsets)
	})
}

// read gives the records of partitions from some offsets on, up to others; those of a partition in their order.
func (b *broker) read(ctx context.Context, topic string, from, to map[int32]int64) ([]*kgo.Record, error) {
	missing := map[int32]bool{}
	start := map[int32]kgo.Offset{}
	for partition, end := range to {
		if end > from[partition] {
			missing[partition] = true
			start[partition] = kgo.NewOffset().At(from[partition])
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(b.addresses...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{b.prefix + topic: start}),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var records []*kgo.Record
	for len(missing) > 0 {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("read %s: %w", topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset < to[r.Partition] {
				records = append(records, r)
			}
			if r.Offset >= to[r.Partition]-1 {
				delete(missing, r.Partition)
			}
		})
	}
	return records, nil
}

// readAll gives what a topic has.
func (b *broker) readAll(ctx context.Context, topic string) ([]*kgo.Record, error) {
	ends, err := b.ends(ctx, topic)
	if err != nil {
		return nil, err
	}
	return b.read(ctx, topic, nil, ends)
}

// forgedKey is the header that tells a forgery.
const forgedKey = "forged"

func parseRecord(topic string, r *kgo.Record) (record, error) {
	parsed := record{UUID: header(r, wkafka.UUIDHeaderKey), Key: string(r.Key), Forged: header(r, forgedKey)}
	if parsed.Forged == forgedBad {
		return parsed, nil
	}
	var err error
	if topic == topicOut {
		parsed.Entity = header(r, outbox.PartitionKeyKey)
		parsed.Version, err = strconv.ParseInt(header(r, outbox.SequenceKey), 10, 64)
		return parsed, err
	}
	var e event
	err = json.Unmarshal(r.Value, &e)
	parsed.Entity, parsed.Version = e.Entity, e.Version
	return parsed, err
}

func parsePoison(r *kgo.Record) poison {
	return poison{
		Consumer: header(r, wmiddleware.PoisonedHandlerKey),
		UUID:     header(r, wkafka.UUIDHeaderKey),
		Reason:   header(r, wmiddleware.ReasonForPoisonedKey),
	}
}

func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}
