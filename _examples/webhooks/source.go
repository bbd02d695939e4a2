package main

import (
	"encoding/json"
	"fmt"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/ordering"
)

// source is what differs between providers: where an event has its id and its type, where in the history of which card it
// belongs, and what it says.
type source struct {
	eventID   dedupe.KeyFunc
	eventType dedupe.KeyFunc
	position  ordering.PositionFunc
	read      func(payload []byte) (change, error)
}

// change is what an event says about its card.
type change struct {
	Status string // the card's from now on
	Amount int64  // to be added to the others
}

// cardSource reads the events that this program makes:
//
//	{"id": "evt_000042", "type": "card.updated", "created_at": "2026-01-02T15:04:05Z",
//	 "data": {"card": "card_7", "status": "paused", "amount": -1250}}
//
// The times are whole seconds, and a card changes twice in one; the ids ascend and decide.
var cardSource = source{
	eventID:   dedupe.JSONField("id"),
	eventType: dedupe.JSONField("type"),
	position:  ordering.JSONFields("data.card", "created_at").WithTieBreak(dedupe.JSONField("id")),
	read: func(payload []byte) (change, error) {
		var event cardEvent
		if err := json.Unmarshal(payload, &event); err != nil {
			return change{}, err
		}
		if event.Data.Status == "" {
			return change{}, fmt.Errorf("event %s has no data.status", event.ID)
		}
		return change{Status: event.Data.Status, Amount: event.Data.Amount}, nil
	},
}

type cardEvent struct {
	ID        string `json:"id"`
	Type      string `json:"type"`
	CreatedAt string `json:"created_at"`
	Data      struct {
		Card   string `json:"card"`
		Status string `json:"status"`
		Amount int64  `json:"amount"`
	} `json:"data"`
}
