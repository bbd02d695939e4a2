package kafkasink

import "github.com/IBM/sarama"

// topic is what a call to Kafka needs to know of one. Partitions are looked up once for all that is sent together, so that a
// key does not change its partition in the middle.
type topic struct {
	partitions  []int32
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
	n, err := t.partitioner.Partition(&m, int32(len(t.partitions)))
	switch {
	case err != nil:
		return 0, err
	case n < 0 || int(n) >= len(t.partitions):
		return 0, sarama.ErrInvalidPartition
	}
	return t.partitions[n], nil
}
