package outbox

import (
	"encoding/base64"
	"encoding/json"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

// envelope is what Watermill's forwarder wraps around a message that is on its way to another topic.
type envelope struct {
	DestinationTopic string            `json:"destination_topic"`
	UUID             string            `json:"uuid"`
	Payload          []byte            `json:"payload"`
	Metadata         map[string]string `json:"metadata"`
}

// openEnvelope gives the message inside of an enveloped one, and its topic.
func openEnvelope(msg *message.Message) (topic string, inner *message.Message, err error) {
	var e envelope
	if err := json.Unmarshal(msg.Payload, &e); err != nil {
		return "", nil, errors.New("is no envelope of Watermill's forwarder: publish through forwarder.NewPublisher")
	}
	inner = message.NewMessage(e.UUID, e.Payload)
	inner.Metadata = e.Metadata
	return e.DestinationTopic, inner, nil
}

// seal puts a row's columns into an envelope. It judges nothing: metadata is taken over as it stands, so that what
// cannot be read fails at the forwarder, which nacks or acks that one message.
func seal(topic, uuid string, payload, metadata []byte) []byte {
	if len(metadata) == 0 {
		metadata = []byte("null")
	}
	size := base64.StdEncoding.EncodedLen(len(payload)) + len(topic) + len(uuid) + len(metadata) + 64
	b := make([]byte, 0, size)
	b = append(b, `{"destination_topic":`...)
	b = appendJSON(b, topic)
	b = append(b, `,"uuid":`...)
	b = appendJSON(b, uuid)
	b = append(b, `,"payload":"`...)
	b = base64.StdEncoding.AppendEncode(b, payload)
	b = append(b, `","metadata":`...)
	b = append(b, metadata...)
	return append(b, '}')
}
