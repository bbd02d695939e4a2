package dedupe

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/internal/jsonfield"
	"github.com/watermill-once/watermill-once/internal/misuse"
)

// KeyFunc finds the event id of a message. It must give the same id for every delivery of one event and another id
// for every other event. It depends on the message alone: any error is taken as final, as ErrInvalidKey; an empty
// id counts as missing.
type KeyFunc func(*message.Message) (string, error)

// MessageUUID is the UUID that the publisher gave the message.
func MessageUUID(msg *message.Message) (string, error) {
	return check(msg.UUID, msg, "UUID")
}

// Metadata is the value under a metadata key.
func Metadata(key string) KeyFunc {
	if key == "" {
		return broken("Metadata", errors.New("the key is empty"))
	}
	field := fmt.Sprintf("metadata %q", key)
	return func(msg *message.Message) (string, error) {
		return check(msg.Metadata[key], msg, field)
	}
}

// JSONField is a member of the JSON payload: "id", or "data.object.id" for one in objects within objects. It is a
// string, or a number written as an integer, which is taken as its decimal text: 17 and "17" are one id, 1.0 and
// 1e3 are none. Names are compared exactly, unlike in encoding/json; a name that holds a dot cannot be reached.
//
// The member is missing where it, or an object on the way, is absent or null or "", and where the payload has no
// bytes (a Kafka tombstone). Everything else is malformed: an object, an array, a boolean; a member that is there
// twice; invalid UTF-8 or half a surrogate pair, by which different ids could become one; and a payload that is not
// one JSON value from its first byte to its last.
//
// A path with an empty name in it makes a KeyFunc that fails on every message, with an error that is not ErrInvalidKey.
func JSONField(path string) KeyFunc {
	finder, err := jsonfield.New(path)
	if err != nil {
		return broken("JSONField", err)
	}
	field := fmt.Sprintf("JSON field %q", path)
	return func(msg *message.Message) (string, error) {
		var text [1]string
		if err := finder.Find(msg.Payload, text[:]); err != nil {
			return "", &keyError{kind: ErrInvalidKey, uuid: msg.UUID, reason: err}
		}
		return check(text[0], msg, field)
	}
}

// FirstOf is the first key that is not missing: the id where newer producers put it, then where older ones did. A
// malformed key is not passed over, for the next one might be a different id of the same event. For the same reason
// the keys of one event must not come and go between its deliveries: FirstOf(JSONField("id"), MessageUUID) is safe
// only if messages of one kind always have the field or never.
func FirstOf(keys ...KeyFunc) KeyFunc {
	if len(keys) == 0 {
		return broken("FirstOf", errors.New("no keys"))
	}
	for i, key := range keys {
		if key == nil {
			return broken("FirstOf", fmt.Errorf("key %d is nil", i))
		}
	}
	return func(msg *message.Message) (string, error) {
		var room [4]error
		missing := room[:0]
		for _, key := range keys {
			id, err := key(msg)
			if err == nil && id == "" {
				_, err = check(id, msg, "Key")
			}
			if err == nil || !errors.Is(err, ErrMissingKey) {
				return id, err
			}
			missing = append(missing, err)
		}
		return "", errors.Join(missing...)
	}
}

// broken makes a KeyFunc that says what was wrong in making it.
func broken(name string, fault error) KeyFunc {
	err := fmt.Errorf("dedupe: %s %w: %w", name, misuse.Err, fault)
	return func(*message.Message) (string, error) { return "", err }
}
