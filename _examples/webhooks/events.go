package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"
)

// event is the body that all deliveries of one event have.
type event struct {
	id   string
	body []byte
}

var statuses = []string{"active", "paused", "blocked", "closed"}

// makeEvents makes the history of some cards, oldest first.
func makeEvents(n int, random *rand.Rand) ([]event, error) {
	cards := max(1, n/20)
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	events := make([]event, n)
	for i := range events {
		var e cardEvent
		e.ID = fmt.Sprintf("evt_%06d", i)
		e.Type = "card.updated"
		e.CreatedAt = start.Add(time.Duration(i) * 20 * time.Millisecond).Format(time.RFC3339) // whole seconds: fifty events in one
		e.Data.Card = fmt.Sprintf("card_%d", random.IntN(cards))
		e.Data.Status = statuses[random.IntN(len(statuses))]
		e.Data.Amount = random.Int64N(20_001) - 10_000
		body, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		events[i] = event{id: e.ID, body: body}
	}
	return events, nil
}

// readEvents reads deliveries that somebody has recorded, one JSON object a line. Lines of one delivery_id are one event.
func readEvents(path string) ([]event, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()

	var events []event
	seen := map[string]bool{}
	lines := bufio.NewReader(file)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if body := bytes.TrimSpace(line); len(body) > 0 {
			var d struct {
				ID string `json:"delivery_id"`
			}
			if err := json.Unmarshal(body, &d); err != nil {
				return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
			}
			if d.ID == "" {
				return nil, fmt.Errorf("%s, line %d: no delivery_id", path, n)
			}
			if !seen[d.ID] {
				seen[d.ID] = true
				events = append(events, event{id: d.ID, body: body})
			}
		}
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
