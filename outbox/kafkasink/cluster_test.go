package kafkasink

import (
	"errors"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/outbox"
)

// mockKafka is a broker that answers as it is told. What is stored where, and in what order, is tested on the whole path.
func mockKafka(t *testing.T, produce sarama.MockResponse) *sarama.MockBroker {
	broker := sarama.NewMockBroker(t, 1)
	t.Cleanup(broker.Close)
	broker.SetHandlerByMap(map[string]sarama.MockResponse{
		"MetadataRequest": sarama.NewMockMetadataResponse(t).
			SetBroker(broker.Addr(), broker.BrokerID()).
			SetLeader("a", 0, broker.BrokerID()).SetLeader("a", 1, broker.BrokerID()).SetLeader("b", 0, broker.BrokerID()),
		"InitProducerIDRequest": sarama.NewMockSequence(
			&sarama.InitProducerIDResponse{Err: sarama.ErrOffsetsLoadInProgress},
			&sarama.InitProducerIDResponse{ProducerID: 5, ProducerEpoch: 3},
		),
		"ProduceRequest": produce,
	})
	return broker
}

// Two topics, three partitions, one request. The topic whose writers are refused does not spoil the other.
func TestRequests(t *testing.T) {
	t.Parallel()
	broker := mockKafka(t, sarama.NewMockProduceResponse(t).SetVersion(7).SetError("b", 0, sarama.ErrTopicAuthorizationFailed))
	config := PublisherConfig()
	config.Producer.Retry.Backoff = 0
	sink, err := New([]string{broker.Addr()}, Config{Sarama: config})
	require.NoError(t, err)
	errs := sink.PublishBatch(t.Context(), []outbox.Outgoing{out("a", "k", "1"), out("a", "l", "2"), out("b", "m", "3"), out("a", "m", "4")})
	require.NoError(t, errors.Join(errs[0], errs[1]))
	require.ErrorIs(t, errs[2], sarama.ErrTopicAuthorizationFailed)
	require.False(t, permanent(errs[2]))
	require.ErrorIs(t, errs[3], ErrHeldBack)
	require.NoError(t, sink.Close())

	produced := 0
	for _, seen := range broker.History() {
		if request, ok := seen.Request.(*sarama.ProduceRequest); ok {
			produced++
			require.Equal(t, sarama.WaitForAll, request.RequiredAcks)
		}
	}
	require.Equal(t, 1, produced)
}

// An answer without a partition that was asked for says nothing about it.
func TestIncompleteAnswer(t *testing.T) {
	t.Parallel()
	broker := mockKafka(t, sarama.NewMockWrapper(&sarama.ProduceResponse{Version: 7}))
	config := PublisherConfig()
	config.Producer.Retry.Backoff = 0
	sink, err := New([]string{broker.Addr()}, Config{Sarama: config})
	require.NoError(t, err)
	require.ErrorIs(t, sink.PublishBatch(t.Context(), []outbox.Outgoing{out("a", "k", "1")})[0], sarama.ErrIncompleteResponse)
	require.NoError(t, sink.Close())
}
