package kafkasink

import (
	"time"

	"github.com/IBM/sarama"
)

// place is where records go.
type place struct {
	topic     string
	partition int32
}

// batch is a run of records for one partition. Kafka stores all of it or nothing, so that messages of one key may follow
// each other in it.
type batch struct {
	place
	items []*item
	bytes int

	identity  *identity // under which it is sent, each time it is: so Kafka knows a repetition
	sequence  int32
	err       error // of the last attempt
	uncertain bool  // an attempt may have stored it
}

// wanted tells whether anybody waits for one of its items.
func (b *batch) wanted() bool {
	for _, it := range b.items {
		if !it.call.left.Load() {
			return true
		}
	}
	return false
}

// records is the batch as Kafka stores it.
func (b *batch) records(codec sarama.CompressionCodec, level int) *sarama.RecordBatch {
	first := b.items[0].time.Truncate(time.Millisecond)
	last := first
	records := make([]*sarama.Record, len(b.items))
	for i, it := range b.items {
		at := it.time.Truncate(time.Millisecond)
		if at.After(last) {
			last = at
		}
		it.record.OffsetDelta = int64(i)
		it.record.TimestampDelta = at.Sub(first)
		records[i] = &it.record
	}
	return &sarama.RecordBatch{
		Version:          2,
		Codec:            codec,
		CompressionLevel: level,
		FirstTimestamp:   first,
		MaxTimestamp:     last,
		LastOffsetDelta:  int32(len(records) - 1),
		ProducerID:       b.identity.id,
		ProducerEpoch:    b.identity.epoch,
		FirstSequence:    b.sequence,
		Records:          records,
	}
}

// identity is what Kafka knows a producer by: it stores, for a producer and a partition, what continues the sequence, and
// knows a repetition of what it has stored. Where it is not known whether something was stored, no later number would be
// right in both cases; a new identity begins at 0 everywhere.
type identity struct {
	id    int64
	epoch int16
	next  map[place]int32
}
