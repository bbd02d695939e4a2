package broker

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/twmb/franz-go/pkg/kfake"
)

// embeddedKafka starts a stand-in for Kafka in this program, which speaks its protocol over TCP and keeps everything in memory.
func embeddedKafka(ctx context.Context, partitions int32, logger watermill.LoggerAdapter) (*Broker, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DefaultNumPartitions(int(partitions)), kfake.AllowAutoTopicCreation())
	if err != nil {
		return nil, err
	}
	k := kafkaSettings{
		brokers: cluster.ListenAddrs(), partitions: partitions, replication: 1, session: 10 * time.Second, ackWait: ackWait,
	}
	b, err := k.open(ctx, logger)
	if err != nil {
		cluster.Close()
		return nil, err
	}
	closePublisher := b.close
	b.close = func() error {
		defer cluster.Close()
		return closePublisher()
	}
	return b, nil
}
