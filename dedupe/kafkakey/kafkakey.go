// Package kafkakey makes event ids for Kafka topics whose events have none.
//
// It is apart from package dedupe because it imports watermill-kafka and all that comes with it.
package kafkakey

import (
	"fmt"
	"strconv"

	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/dedupe"
)

// Offset is a dedupe.KeyFunc: the place of the record, as "topic/partition/offset". It needs a message that a
// Router has received (the Router knows the topic) from watermill-kafka; from any other it is missing, as
// dedupe.ErrMissingKey.
//
// It catches what the broker delivers again: a record whose offset was not committed before a crash or a rebalance,
// a consumer group set back. It cannot catch what is written again, for that is another record: a producer's retry
// (but for an idempotent producer's own), a replay, an event copied from a retry topic. Nor does it know a record
// whose place has changed, as in a mirrored topic.
//
// And it loses events where places are used again: a topic that was deleted and made anew starts over at offset 0,
// and its new events are taken for old ones (delete the claims together with the topic); so are those of a topic of
// the same name on another cluster (give each cluster's handler a consumer name of its own). An id from the
// producer is better in every case.
func Offset(msg *message.Message) (string, error) {
	ctx := msg.Context()
	topic := message.SubscribeTopicFromCtx(ctx)
	partition, ok := kafka.MessagePartitionFromCtx(ctx)
	offset, there := kafka.MessagePartitionOffsetFromCtx(ctx)
	switch {
	case !ok || !there:
		return "", fmt.Errorf("%w: message %.80q: no Kafka partition and offset on its context", dedupe.ErrMissingKey, msg.UUID)
	case topic == "":
		return "", fmt.Errorf("%w: message %.80q: no topic on its context: it did not come through a Router",
			dedupe.ErrMissingKey, msg.UUID)
	}
	// A topic's name has no slash, and is 249 bytes at most.
	key := make([]byte, 0, len(topic)+32)
	key = append(key, topic...)
	key = strconv.AppendInt(append(key, '/'), int64(partition), 10)
	key = strconv.AppendInt(append(key, '/'), offset, 10)
	return string(key), nil
}
