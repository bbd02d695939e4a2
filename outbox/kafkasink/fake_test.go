package kafkasink

import (
	"slices"

	"github.com/IBM/sarama"
)

// fakeKafka is a cluster in memory that keeps Kafka's rules for what it stores, and fails as it is told.
type fakeKafka struct {
	topics   map[string]int         // how many partitions
	maxBytes int                    // of a batch
	refuses  func(uuid string) bool // a record for what it is
	fate     func(b *batch) fate    // nil: all is well
	missing  func(topic string) error

	log       []stored
	producers map[producerAt]*sequences
	ids       int64
	calls     [][]int // how many records were in the batches of each produce
	bytes     [][]int // and how many bytes
	lookUps   int
	refreshed int
	astray    []sent // requests that may still arrive
}

type fate int

const (
	arrives    fate = iota
	unanswered      // stored, and the answer is lost
	lost            // never arrives
	late            // arrives some time later, when nobody waits for it
	overtaken       // arrives behind what went astray
	noLeader        // answered, not stored
	forgotten       // the broker has lost what it knew of its producers
	forbidden
)

type stored struct {
	place
	uuid string
}

type producerAt struct {
	place
	id int64
}

type sequences struct {
	next int32
	last [][2]int32 // first and length of what was stored
}

// sent is a batch as it is on the wire.
type sent struct {
	place
	id       int64
	sequence int32
	bytes    int
	uuids    []string
}

func newFakeKafka(topics map[string]int) *fakeKafka {
	return &fakeKafka{topics: topics, maxBytes: 1 << 30, producers: make(map[producerAt]*sequences)}
}

func (k *fakeKafka) partitions(topic string) ([]int32, error) {
	k.lookUps++
	if k.missing != nil {
		if err := k.missing(topic); err != nil {
			return nil, err
		}
	}
	n, ok := k.topics[topic]
	if !ok {
		return nil, sarama.ErrUnknownTopicOrPartition
	}
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i)
	}
	return ids, nil
}

func (k *fakeKafka) identify() (*identity, error) {
	k.ids++
	return &identity{id: k.ids, next: make(map[place]int32)}, nil
}

func (k *fakeKafka) produce(batches []*batch) {
	sizes, bytes := make([]int, len(batches)), make([]int, len(batches))
	for i, b := range batches {
		sizes[i], bytes[i] = len(b.items), b.bytes
		s := sent{place: b.place, id: b.identity.id, sequence: b.sequence, bytes: b.bytes}
		for _, it := range b.items {
			s.uuids = append(s.uuids, it.uuid)
		}
		b.err = k.receive(b, s)
	}
	k.calls, k.bytes = append(k.calls, sizes), append(k.bytes, bytes)
}

func (k *fakeKafka) receive(b *batch, s sent) error {
	f := arrives
	if k.fate != nil {
		f = k.fate(b)
	}
	switch f {
	case unanswered:
		_ = k.store(s)
		return errLine
	case lost:
		return errLine
	case late:
		k.astray = append(k.astray, s)
		return errLine
	case overtaken:
		k.arrive()
	case noLeader:
		return sarama.ErrNotLeaderForPartition
	case forbidden:
		return sarama.ErrTopicAuthorizationFailed
	case forgotten:
		delete(k.producers, producerAt{s.place, s.id})
		return sarama.ErrUnknownProducerID
	}
	return k.store(s)
}

var errLine = sarama.ErrNotConnected

// arrive has what went astray come in.
func (k *fakeKafka) arrive() {
	for _, s := range k.astray {
		_ = k.store(s)
	}
	k.astray = nil
}

// store is what a leader does with a batch.
func (k *fakeKafka) store(s sent) error {
	if s.bytes > k.maxBytes {
		return sarama.ErrMessageSizeTooLarge
	}
	if k.refuses != nil && slices.ContainsFunc(s.uuids, k.refuses) {
		return sarama.ErrInvalidRecord
	}
	at := producerAt{s.place, s.id}
	known, n := k.producers[at], int32(len(s.uuids))
	switch {
	case known == nil:
		known = &sequences{}
		k.producers[at] = known
	case slices.Contains(known.last, [2]int32{s.sequence, n}):
		return nil
	case s.sequence != known.next:
		return sarama.ErrOutOfOrderSequenceNumber
	}
	known.next = s.sequence + n
	known.last = append(known.last, [2]int32{s.sequence, n})
	if len(known.last) > 5 {
		known.last = known.last[1:]
	}
	for _, uuid := range s.uuids {
		k.log = append(k.log, stored{s.place, uuid})
	}
	return nil
}

func (k *fakeKafka) refresh([]*batch) { k.refreshed++ }
func (k *fakeKafka) close() error     { return nil }

// uuids is all that is stored, in the order in which it came.
func (k *fakeKafka) uuids() []string {
	var all []string
	for _, s := range k.log {
		all = append(all, s.uuid)
	}
	return all
}
