package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/twmb/franz-go/pkg/kgo"
)

// forge writes records to a topic past the outbox, as a replay or a careless producer would.
func (b *broker) forge(ctx context.Context, l *ledger, records []*kgo.Record) error {
	for _, r := range records {
		l.note(forging, header(r, wkafka.UUIDHeaderKey), "%s, %s, key %s, partition %d: %s",
			header(r, forgedKey), r.Topic, r.Key, r.Partition, r.Value)
	}
	return b.client.ProduceSync(ctx, records...).FirstErr()
}

// sample gives some records of a topic, from a place that draw tells, the last of them first.
func (b *broker) sample(ctx context.Context, topic string, n int, draw float64) ([]*kgo.Record, error) {
	ends, err := b.ends(ctx, topic)
	if err != nil {
		return nil, err
	}
	place := draw * partitions
	partition := int32(place)
	from := int64((place - float64(partition)) * float64(ends[partition]))
	records, err := b.read(ctx, topic, map[int32]int64{partition: from}, map[int32]int64{partition: min(from+int64(n), ends[partition])})
	slices.Reverse(records)
	return records, err
}

// copies are records once more.
func copies(of []*kgo.Record) (records []*kgo.Record) {
	for _, r := range of {
		forged := header(r, forgedKey)
		if forged == "" {
			forged = forgedCopy
		}
		records = append(records, remake(r, header(r, wkafka.UUIDHeaderKey), r.Value, forged))
	}
	return records
}

// late are new events, each a little older than one of those given.
func late(of []*kgo.Record) ([]*kgo.Record, error) {
	var records []*kgo.Record
	for _, r := range of {
		if header(r, forgedKey) != "" {
			continue
		}
		var e event
		if err := json.Unmarshal(r.Value, &e); err != nil {
			return nil, err
		}
		e.Version -= versionStep / 2
		value, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		records = append(records, remake(r, watermill.NewUUID(), value, forgedEvent))
	}
	return records, nil
}

// bad are records that no consumer can read.
func bad(of []*kgo.Record) (records []*kgo.Record) {
	for i, r := range of {
		value := []byte(`{"entity": "account-1", "version"`)
		if i%2 == 1 {
			value = fmt.Appendf(nil, `{"entity": %q}`, r.Key)
		}
		records = append(records, remake(r, watermill.NewUUID(), value, forgedBad))
	}
	return records
}

func remake(r *kgo.Record, uuid string, value []byte, forged string) *kgo.Record {
	headers := []kgo.RecordHeader{{Key: wkafka.UUIDHeaderKey, Value: []byte(uuid)}, {Key: forgedKey, Value: []byte(forged)}}
	for _, h := range r.Headers {
		if h.Key != wkafka.UUIDHeaderKey && h.Key != forgedKey {
			headers = append(headers, h)
		}
	}
	return &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: value, Headers: headers}
}
