package main

import (
	"encoding/json"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
)

// notice tells the mailer of a card's change.
type notice struct {
	Card      string    `json:"card"`
	Status    string    `json:"status"`
	ChangedAt time.Time `json:"changed_at"`
}

// It sets the state from the event, and adds nothing to what is there: even run twice it would do no harm.
const upsertCard = `
insert into cards (card, status, changed_at, event_id)
values ($1, $2, $3, $4)
on conflict (card) do update
set status = excluded.status, changed_at = excluded.changed_at, event_id = excluded.event_id, updated_at = now()`

// changeCard is called once for each event that is newer than what its card has had. The card, the notice and the claim of the
// event commit together.
func (s *service) changeCard(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	change, err := s.source.read(msg.Payload)
	if err != nil {
		return nil, once.Permanent(err)
	}
	position, err := s.source.position(msg)
	if err != nil {
		return nil, once.Permanent(err)
	}
	changedAt := time.UnixMicro(position.Version).UTC()

	tx, _ := once.PgxTx(ctx)
	if _, err := tx.Exec(ctx, upsertCard, position.Entity, change.Status, changedAt, once.EventID(ctx)); err != nil {
		return nil, err
	}

	payload, err := json.Marshal(notice{Card: position.Entity, Status: change.Status, ChangedAt: changedAt})
	if err != nil {
		return nil, err
	}
	// The same UUID should somebody have the event run again, so that no second e-mail follows from it.
	uuid, _ := once.DeriveUUID(ctx, "notice")
	out := message.NewMessage(uuid, payload)
	out.Metadata.Set(outbox.PartitionKeyKey, position.Entity) // notices of one card keep their order
	return []*message.Message{out}, nil
}
