package main

import (
	"github.com/ThreeDotsLabs/watermill/message"

	once "github.com/watermill-once/watermill-once/middleware"
)

const insertEntry = `
insert into ledger_entries (event_id, card, amount)
values ($1, $2, $3)`

// addToLedger is called once for each event, in whatever order they come. Its one write travels with the COMMIT.
func (s *service) addToLedger(msg *message.Message) error {
	ctx := msg.Context()
	change, err := s.source.read(msg.Payload)
	if err != nil {
		return once.Permanent(err)
	}
	position, err := s.source.position(msg)
	if err != nil {
		return once.Permanent(err)
	}
	return once.Queue(ctx, insertEntry, once.EventID(ctx), position.Entity, change.Amount)
}
