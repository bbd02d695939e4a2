package main

import (
	"encoding/json"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
)

// order is what a customer wants. Its id is the message's UUID: the event's id.
type order struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"`
}

func (o order) message() (*message.Message, error) {
	payload, err := json.Marshal(o)
	return message.NewMessage(o.ID, payload), err
}

const insertOrder = `
insert into orders (id, amount, charge_key)
values ($1, $2, $3)`

// placeOrder runs in a transaction, once for each order. It calls nobody, for no rollback takes back a call: it asks for the charge
// by a message, which leaves by the outbox if the transaction commits.
//
// The charge's key is made here, from the order's event. So it is the same however often the message comes, and however often the
// card is charged with it, and it stands in the order, for those who find it in the journal of calls.
func (s *service) placeOrder(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return nil, once.Permanent(err)
	}
	key, keyed := once.IdempotencyKey(ctx, "charge")
	id, named := once.DeriveUUID(ctx, "charge")
	if !keyed || !named {
		return nil, errors.New("not behind the middleware")
	}
	if err := once.Queue(ctx, insertOrder, o.ID, o.Amount, key); err != nil {
		return nil, err
	}
	charge, err := chargeRequest{Order: o.ID, Amount: o.Amount, Key: key}.message(id)
	return []*message.Message{charge}, err
}

// chargeRequest asks for a card to be charged.
type chargeRequest struct {
	Order  string `json:"order"`
	Amount int64  `json:"amount"`
	Key    string `json:"key"`
}

func (r chargeRequest) message(uuid string) (*message.Message, error) {
	payload, err := json.Marshal(r)
	msg := message.NewMessage(uuid, payload)
	msg.Metadata.Set(outbox.PartitionKeyKey, r.Order)
	return msg, err
}
