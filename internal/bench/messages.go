package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// entities is how many cards the events are about: enough that two in flight seldom meet.
const entities = 10_000

// source makes fresh events. Ids ascend, as UUIDv7 and ULID do.
type source struct{ last atomic.Int64 }

func (s *source) next() *message.Message { return s.event(s.last.Add(1)) }

func (s *source) event(n int64) *message.Message {
	msg := message.NewMessage(fmt.Sprintf("0192f1c2-%04x-7000-8000-%012x", n>>48, n), []byte(`{"type":"card.updated","card":"card-`+strconv.FormatInt(n%entities, 10)+`","status":"active","amount":1250,"currency":"EUR","note":"a payload of about the size that webhooks have, to be fair to both"}`))
	msg.Metadata = message.Metadata{
		"entity":      "card-" + strconv.FormatInt(n%entities, 10),
		"version":     strconv.FormatInt(n, 10),
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	return msg
}

// mail is what every handler produces.
func mail(uuid, entity string) *message.Message {
	msg := message.NewMessage("mail-"+uuid, []byte(`{"template":"card-updated","at":"`+time.Now().UTC().Format(time.RFC3339)+`"}`))
	msg.Metadata = message.Metadata{"partition_key": entity}
	return msg
}

// mails are n of them, of as many cards.
func mails(n int) []*message.Message {
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = mail(watermill.NewUUID(), "card-"+strconv.FormatInt(rand.Int64N(entities), 10))
	}
	return msgs
}

func metadataJSON(msg *message.Message) ([]byte, error) { return json.Marshal(msg.Metadata) }
