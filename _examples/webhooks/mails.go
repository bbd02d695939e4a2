package main

import (
	"encoding/json"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	once "github.com/watermill-once/watermill-once/middleware"
)

const insertEmail = `
insert into emails (idempotency_key, card, status, changed_at)
values ($1, $2, $3, $4)`

// sendMail is called once for each notice, though the relay may have sent some twice.
//
// Here an e-mail is a row, which a rollback takes back. A real one is not: a crash between the call and the COMMIT would send
// it again. So the real call passes the idempotency key, which is the same on every attempt, for the mail service to know a
// repetition by.
func (s *service) sendMail(msg *message.Message) error {
	ctx := msg.Context()
	var n notice
	if err := json.Unmarshal(msg.Payload, &n); err != nil {
		return once.Permanent(err)
	}
	key, ok := once.IdempotencyKey(ctx, "send mail")
	if !ok {
		return errors.New("no event id")
	}
	return once.Queue(ctx, insertEmail, key, n.Card, n.Status, n.ChangedAt)
}
