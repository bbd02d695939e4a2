package dedupe_test

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/dedupe"
)

// Newer producers put the event's id into the payload, older ones into the metadata.
func ExampleFirstOf() {
	config := dedupe.Config{Key: dedupe.FirstOf(dedupe.JSONField("event.id"), dedupe.Metadata("event_id"))}

	newer := message.NewMessage("", []byte(`{"event":{"id":"evt_1"}}`))
	fmt.Println(config.EventID(newer))

	older := message.NewMessage("", []byte(`{}`))
	older.Metadata.Set("event_id", "evt_2")
	fmt.Println(config.EventID(older))

	_, err := config.EventID(message.NewMessage("", []byte(`{"event":{"id":true}}`)))
	fmt.Println(errors.Is(err, dedupe.ErrInvalidKey), errors.Is(err, dedupe.ErrMissingKey))
	fmt.Println(err)
	// Output:
	// evt_1 <nil>
	// evt_2 <nil>
	// true false
	// dedupe: invalid event id: message "": JSON field "event.id" is a boolean
}
