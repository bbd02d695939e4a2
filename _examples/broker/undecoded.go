package broker

import "github.com/ThreeDotsLabs/watermill/message"

// UndecodedKey is the metadata key of a message that could not be decoded; its value is the reason, and its payload what the broker
// had. It has no UUID. So it is refused, for good, where the UUID is the event id, and goes to the poison queue, to be seen. A
// decoder that returned an error instead would, after the plugin: end the subscription, or deliver the same bytes for ever.
const UndecodedKey = "broker_undecoded"

func undecoded(payload []byte, reason string) *message.Message {
	msg := message.NewMessage("", payload)
	msg.Metadata.Set(UndecodedKey, reason)
	return msg
}
