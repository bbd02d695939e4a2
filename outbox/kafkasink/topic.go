package kafkasink

import (
	"fmt"

	"github.com/IBM/sarama"
)

// topic is what a call to Kafka needs to know of one. Partitions are looked up once for all that is sent together, so that a
// key does not change its partition in the middle.
type topic struct {
	partitions  []int32
	construct   sarama.PartitionerConstructor
	partitioner sarama.Partitioner
	err         error
}

func (t *topic) partitionFor(it *item) (int32, error) {
	if t.err != nil {
		return 0, t.err
	}
	m := sarama.ProducerMessage{Topic: it.topic}
	if it.record.Key != nil {
		m.Key = sarama.ByteEncoder(it.record.Key)
	}
	n, err := t.choose(&m)
	switch {
	case err != nil:
		return 0, err
	case n < 0 || int(n) >= len(t.partitions):
		return 0, sarama.ErrInvalidPartition
	}
	return t.partitions[n], nil
}

// choose asks the user's partitioner. Its panic is that message's error.
func (t *topic) choose(m *sarama.ProducerMessage) (n int32, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the Partitioner panicked: %v", p)
		}
	}()
	if t.partitioner == nil {
		t.partitioner = t.construct(m.Topic)
	}
	return t.partitioner.Partition(m, int32(len(t.partitions)))
}
