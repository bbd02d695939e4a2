package broker

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// What other producers send comes through, to the handler or to the poison queue, whatever it is.
func TestEveryMessageIsDecoded(t *testing.T) {
	t.Parallel()

	msg, err := kafkaUnmarshaler{}.Unmarshal(&sarama.ConsumerMessage{Headers: []*sarama.RecordHeader{{Key: []byte("a"), Value: nil}}})
	require.NoError(t, err, "a tombstone")
	require.Empty(t, msg.UUID)
	require.Empty(t, msg.Payload)
	require.Equal(t, message.Metadata{"a": ""}, msg.Metadata)

	msg, err = amqpMarshaler{}.Unmarshal(amqp091.Delivery{
		Acknowledger: &amqp091.Channel{}, Body: []byte("body"), Headers: amqp091.Table{"n": int64(7), "x-death": []any{amqp091.Table{"count": int64(1)}}},
	})
	require.NoError(t, err, "headers that are not text")
	require.Equal(t, "body", string(msg.Payload))
	require.Equal(t, message.Metadata{"n": "7", "x-death": "[map[count:1]]"}, msg.Metadata)
	_, err = amqpMarshaler{}.Unmarshal(amqp091.Delivery{})
	require.Error(t, err, "no message, but the end of the channel")

	msg, err = natsUnmarshaler{}.Unmarshal(natsMessage{})
	require.NoError(t, err, "several values of a header")
	require.Equal(t, "data", string(msg.Payload))
	require.Equal(t, message.Metadata{"a": "1,2"}, msg.Metadata)

	for _, values := range []map[string]any{
		{"field": "value"},
		{redisstream.UUIDHeaderKey: "uuid", "metadata": "not msgpack", "payload": "p"},
		{},
	} {
		msg, err = redisUnmarshaler{}.Unmarshal(values)
		require.NoError(t, err)
		require.Empty(t, msg.UUID)
		require.NotEmpty(t, msg.Metadata.Get(UndecodedKey))
		require.True(t, len(msg.Payload) > 0 && msg.Payload[0] == '{')
	}
}

type natsMessage struct{ jetstream.Msg }

func (natsMessage) Data() []byte { return []byte("data") }

func (natsMessage) Headers() natsgo.Header { return natsgo.Header{"a": {"1", "2"}} }
