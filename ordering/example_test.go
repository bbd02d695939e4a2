package ordering_test

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/ordering"
)

// The provider's events have no version, but the second in which they were created.
func ExamplePositionFunc_WithUnixTime() {
	config := ordering.Config{
		Position: ordering.JSONFields("data.object.id", "created").WithUnixTime(time.Second),
	}
	msg := message.NewMessage("", []byte(`{"id":"evt_1","created":1767323045,"data":{"object":{"id":"card_7"}}}`))
	position, err := config.PositionOf(msg)
	fmt.Printf("%+v %v\n", position, err)
	// Output:
	// {Entity:card_7 Version:1767323045000000 Clock:true TieBreak:} <nil>
}
