package kafkasink

import (
	"sync"

	"github.com/IBM/sarama"
)

// cluster is Kafka: each method is one attempt.
type cluster interface {
	// partitions gives the topic's, never none.
	partitions(topic string) ([]int32, error)
	// identify gives a new identity.
	identify() (*identity, error)
	// produce sends batches, of different partitions, and sets err of each.
	produce(batches []*batch)
	// refresh forgets who leads the partitions.
	refresh(batches []*batch)
	close() error
}

// kafkaCluster is a cluster by sarama's client. Its producers are not used: after a failure they give themselves a new
// identity and go on with what comes behind, and so lose the order just where it matters; and they have two requests open
// where MaxOpenRequests is 1. Broker.Produce is one request.
type kafkaCluster struct {
	brokers []string
	config  sarama.Config
	client  sarama.Client // nil until it is needed
}

func newCluster(brokers []string, config *sarama.Config) *kafkaCluster {
	c := &kafkaCluster{brokers: brokers, config: *config}
	c.config.Metadata.Retry.Max = 0 // producer repeats by itself
	c.config.Metadata.Full = false  // the topics in use, not all of the cluster
	return c
}

func (c *kafkaCluster) connect() error {
	if c.client != nil {
		return nil
	}
	client, err := sarama.NewClient(c.brokers, &c.config)
	if err != nil {
		return err
	}
	c.client = client
	return nil
}

func (c *kafkaCluster) partitions(topic string) ([]int32, error) {
	if err := c.connect(); err != nil {
		return nil, err
	}
	return c.client.Partitions(topic)
}

func (c *kafkaCluster) identify() (*identity, error) {
	if err := c.connect(); err != nil {
		return nil, err
	}
	response, err := c.client.InitProducerID()
	if err != nil {
		return nil, err
	}
	if response.Err != sarama.ErrNoError {
		return nil, response.Err
	}
	return &identity{response.ProducerID, response.ProducerEpoch, make(map[place]int32)}, nil
}

func (c *kafkaCluster) produce(batches []*batch) {
	byLeader := make(map[*sarama.Broker][]*batch)
	for _, b := range batches {
		leader, err := c.client.Leader(b.topic, b.partition)
		if b.err = err; err == nil {
			byLeader[leader] = append(byLeader[leader], b)
		}
	}
	var all sync.WaitGroup
	for leader, batches := range byLeader {
		all.Go(func() { c.request(leader, batches) })
	}
	all.Wait()
}

// request sends one request with all batches.
func (c *kafkaCluster) request(leader *sarama.Broker, batches []*batch) {
	producer := &c.config.Producer
	request := &sarama.ProduceRequest{
		Version:      7, // Kafka 2.1
		RequiredAcks: producer.RequiredAcks,
		Timeout:      int32(producer.Timeout.Milliseconds()),
	}
	for _, b := range batches {
		request.AddBatch(b.topic, b.partition, b.records(producer.Compression, producer.CompressionLevel))
	}
	response, err := leader.Produce(request)
	if err != nil {
		_ = leader.Close() // an answer that comes late would be taken for that to the next request
	}
	for _, b := range batches {
		if b.err = err; err != nil {
			continue
		}
		block := response.GetBlock(b.topic, b.partition)
		switch {
		case block == nil:
			b.err = sarama.ErrIncompleteResponse
		case block.Err != sarama.ErrNoError:
			b.err = block.Err
		}
	}
}

func (c *kafkaCluster) refresh(batches []*batch) {
	topics := make([]string, 0, len(batches))
	seen := make(map[string]bool, len(batches))
	for _, b := range batches {
		if !seen[b.topic] {
			seen[b.topic] = true
			topics = append(topics, b.topic)
		}
	}
	_ = c.client.RefreshMetadata(topics...) // if it fails, so does the next attempt, with a better error
}

func (c *kafkaCluster) close() error {
	if c.client == nil {
		return nil
	}
	for _, broker := range c.client.Brokers() {
		_ = broker.Close() // the client's Close does not wait for them
	}
	return c.client.Close()
}
