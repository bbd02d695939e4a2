package pathtest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watermill-once/watermill-once/outbox"
	"github.com/watermill-once/watermill-once/outbox/kafkasink"
)

// newStock makes watermill-kafka's own Publisher, with the settings that package kafkasink tells for it.
func newStock(t *testing.T, brokers []string) *wkafka.Publisher {
	t.Helper()
	config := kafkasink.PublisherConfig()
	config.Producer.Idempotent = false
	stock, err := wkafka.NewPublisher(wkafka.PublisherConfig{
		Brokers:               brokers,
		Marshaler:             wkafka.NewWithPartitioningMarshaler(outbox.PartitionKey),
		OverwriteSaramaConfig: config,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stock.Close()) })
	return stock
}

// Many publish at a time, as the relay does, and Kafka refuses what some of them have. What it has acknowledged to the others is
// there: with Idempotent, some of it is not.
func TestStockPublisherKeepsWhatItAcks(t *testing.T) {
	t.Parallel()
	kafka := StartKafka(t, "topic", "refused")
	kafka.Cluster.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		kafka.Cluster.KeepControl()
		return refuse(request.(*kmsg.ProduceRequest), "refused")
	})
	stock := newStock(t, kafka.Brokers())

	var (
		publishing sync.WaitGroup
		mu         sync.Mutex
		acked      []string
	)
	end := time.Now().Add(3 * time.Second)
	for lane := range 64 {
		topic := "topic"
		if lane%16 == 0 {
			topic = "refused"
		}
		publishing.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				msg := message.NewMessage(fmt.Sprintf("%d.%d", lane, n), nil)
				msg.Metadata.Set(outbox.PartitionKeyKey, fmt.Sprint("key ", lane))
				if stock.Publish(topic, msg) != nil {
					continue
				}
				mu.Lock()
				acked = append(acked, msg.UUID)
				mu.Unlock()
			}
		})
	}
	publishing.Wait()

	stored := map[string]bool{}
	for _, topic := range []string{"topic", "refused"} {
		for _, record := range kafka.Read(t, topic) {
			stored[header(record, uuidHeader)] = true
		}
	}
	var lost []string
	for _, uuid := range acked {
		if !stored[uuid] {
			lost = append(lost, uuid)
		}
	}
	require.Empty(t, lost, "%d of %d", len(lost), len(acked))
	require.NotEmpty(t, acked)
}

// refuse answers requests with records of a topic alone: they are too large.
func refuse(request *kmsg.ProduceRequest, topic string) (kmsg.Response, error, bool) {
	if len(request.Topics) != 1 || request.Topics[0].Topic != topic {
		return nil, nil, false
	}
	refused := kmsg.NewProduceResponseTopic()
	refused.Topic = topic
	for _, p := range request.Topics[0].Partitions {
		partition := kmsg.NewProduceResponseTopicPartition()
		partition.Partition, partition.ErrorCode = p.Partition, kerr.MessageTooLarge.Code
		refused.Partitions = append(refused.Partitions, partition)
	}
	response := request.ResponseKind().(*kmsg.ProduceResponse)
	response.Topics = append(response.Topics, refused)
	return response, nil, true
}
