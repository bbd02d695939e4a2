package main

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/ordering"
)

// outcome is what must come out, however often and in whatever order the events are delivered.
type outcome struct {
	events int
	amount int64
	cards  map[string]newest
}

// newest is the end of a card's history: one event, or several that nothing tells apart.
type newest struct {
	position ordering.Position
	statuses map[string]bool
}

func (s source) outcomeOf(events []event) (outcome, error) {
	o := outcome{events: len(events), cards: map[string]newest{}}
	for _, e := range events {
		change, err := s.read(e.body)
		if err != nil {
			return outcome{}, fmt.Errorf("event %s: %w", e.id, err)
		}
		position, err := s.position(message.NewMessage(e.id, e.body))
		if err != nil {
			return outcome{}, fmt.Errorf("event %s: %w", e.id, err)
		}
		o.amount += change.Amount

		last, seen := o.cards[position.Entity]
		if !seen || beyond(position, last.position) {
			last = newest{position, map[string]bool{}}
		}
		if !beyond(last.position, position) {
			last.statuses[change.Status] = true
		}
		o.cards[position.Entity] = last
	}
	return o, nil
}

// beyond tells whether a is later than b.
func beyond(a, b ordering.Position) bool {
	return a.Version > b.Version || a.Version == b.Version && a.TieBreak > b.TieBreak
}
