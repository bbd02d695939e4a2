package dedupe

import (
	"errors"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/internal/jsonfield"
)

// CloudEventID is the id attribute of a CloudEvent. In binary mode it is in the metadata, under the name that the
// protocol's binding gives it and the subscriber passes on: "ce_id" (Kafka), "ce-id" (HTTP, NATS; also as net/http
// writes it, "Ce-Id"), "cloudEvents_id" or "cloudEvents:id" (AMQP). In structured mode it is the member "id" of a
// JSON payload that has "specversion" too: without that a payload's "id" may be anything, such as the id of an
// object, and counts as missing. Ids are taken as they stand: those in HTTP headers are not percent-decoded.
//
// CloudEvents makes ids unique within their source only (specification, section "id"). Where several sources feed one
// consumer use CloudEventSourceID.
func CloudEventID(msg *message.Message) (string, error) {
	event, err := readCloudEvent(msg)
	if err != nil {
		return "", err
	}
	return check(event.id, msg, "CloudEvent id")
}

// CloudEventSourceID is the source and the id of a CloudEvent, joined by a space: together they are what
// CloudEvents makes unique. A producer that changes its source URI makes new events of old ones.
func CloudEventSourceID(msg *message.Message) (string, error) {
	event, err := readCloudEvent(msg)
	if err != nil {
		return "", err
	}
	if _, err := check(event.id, msg, "CloudEvent id"); err != nil {
		return "", err
	}
	if _, err := check(event.source, msg, "CloudEvent source"); err != nil {
		return "", err
	}
	if strings.Contains(event.source, " ") { // no URI; and "a b" + "c" would be "a" + "b c"
		return "", &keyError{ErrInvalidKey, msg.UUID, "CloudEvent source", errors.New("holds a space")}
	}
	return check(event.source+" "+event.id, msg, "CloudEvent source and id")
}

type cloudEvent struct{ id, source string }

// bindings are the prefixes that the protocol bindings put before the attributes' names.
var bindings = []cloudEvent{
	{"ce_id", "ce_source"},
	{"ce-id", "ce-source"},
	{"Ce-Id", "Ce-Source"},
	{"cloudEvents_id", "cloudEvents_source"},
	{"cloudEvents:id", "cloudEvents:source"},
}

var structured, _ = jsonfield.New("id", "source", "specversion")

// readCloudEvent leaves empty what is missing.
func readCloudEvent(msg *message.Message) (cloudEvent, error) {
	for _, names := range bindings {
		if id := msg.Metadata[names.id]; id != "" {
			return cloudEvent{id, msg.Metadata[names.source]}, nil
		}
	}
	if !looksLikeObject(msg.Payload) {
		return cloudEvent{}, nil // no CloudEvent in JSON, and not for us to judge
	}
	var texts [3]string
	if err := structured.Find(msg.Payload, texts[:]); err != nil {
		return cloudEvent{}, &keyError{ErrInvalidKey, msg.UUID, "CloudEvent:", err}
	}
	if texts[2] == "" {
		return cloudEvent{}, nil
	}
	return cloudEvent{texts[0], texts[1]}, nil
}

func looksLikeObject(payload []byte) bool {
	for _, c := range payload {
		switch c {
		case ' ', '\t', '\n', '\r':
		default:
			return c == '{'
		}
	}
	return false
}
