package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
)

// comparison is what a replay has changed in the database.
type comparison struct {
	Event    string        `json:"event"`
	Card     string        `json:"card"`
	Delivery string        `json:"delivery"` // the replay's own
	Outcomes []consumed    `json:"outcomes"`
	Tables   []tableChange `json:"tables"`
	Changes  []rowChange   `json:"changes"` // none: it has changed nothing
}

// consumed is what a consumer has made of the replay.
type consumed struct {
	Consumer string `json:"consumer"`
	Outcome  string `json:"outcome"`
}

// tableChange sums up the rows of one table that the event is about.
type tableChange struct {
	Table  string  `json:"table"`
	Before summary `json:"before"`
	After  summary `json:"after"`
}

type summary struct {
	Rows   int    `json:"rows"`
	Newest string `json:"newest"` // when a row was last written
}

// rowChange is one row before and after, as JSON; "" where it was not there.
type rowChange struct {
	Table  string `json:"table"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// compare replays a delivery: a new one of the same event, signed anew, on the way that all take.
func (c *console) compare(ctx context.Context, d delivery) (comparison, error) {
	position, err := c.service.source.position(message.NewMessage(d.event.id, d.event.body))
	if err != nil {
		return comparison{}, err
	}
	before, err := c.service.rowsOf(ctx, position.Entity, d.event.id)
	if err != nil {
		return comparison{}, err
	}
	d.lost, d.replay = false, true
	id, err := c.provider.deliver(ctx, d)
	if err != nil {
		return comparison{}, err
	}
	if err := c.service.settle(ctx, c.provider, 0); err != nil {
		return comparison{}, err
	}
	after, err := c.service.rowsOf(ctx, position.Entity, d.event.id)
	if err != nil {
		return comparison{}, err
	}
	result := comparison{Event: d.event.id, Card: position.Entity, Delivery: id}
	for _, consumer := range []string{"cards", "ledger"} {
		result.Outcomes = append(result.Outcomes, consumed{consumer, c.service.counts.latest(consumer).String()})
	}
	result.Tables, result.Changes = difference(before, after)
	return result, nil
}

// storedRow is a row with what names it in its table.
type storedRow struct {
	table, key string
	writtenAt  time.Time
	content    string
}

// rowsOf reads all rows that an event could have changed: its card, the card's entries and e-mails, and the event's claims.
func (s *service) rowsOf(ctx context.Context, card, eventID string) ([]storedRow, error) {
	const query = `
select 'cards', card, updated_at, to_jsonb(c)::text from cards c where card = $1
union all
select 'ledger_entries', event_id, created_at, to_jsonb(l)::text from ledger_entries l where card = $1
union all
select 'emails', id::text, sent_at, to_jsonb(e)::text from emails e where card = $1
union all
select 'watermill_processed_events', consumer, processed_at, to_jsonb(p)::text from watermill_processed_events p where event_id = $2
order by 1, 2`
	rows, err := s.pool.Query(ctx, query, card, eventID)
	if err != nil {
		return nil, fmt.Errorf("rows of %s: %w", card, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r storedRow, err error) {
		err = row.Scan(&r.table, &r.key, &r.writtenAt, &r.content)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("rows of %s: %w", card, err)
	}
	return found, nil
}

// difference sums up both, and gives each row that is not the same in both.
func difference(before, after []storedRow) ([]tableChange, []rowChange) {
	tables := []tableChange{{Table: "cards"}, {Table: "ledger_entries"}, {Table: "emails"}, {Table: "watermill_processed_events"}}
	for i := range tables {
		tables[i].Before = summarize(before, tables[i].Table)
		tables[i].After = summarize(after, tables[i].Table)
	}

	type key struct{ table, key string }
	was := map[key]string{}
	for _, r := range before {
		was[key{r.table, r.key}] = r.content
	}
	changes := []rowChange{}
	for _, r := range after {
		k := key{r.table, r.key}
		if was[k] != r.content {
			changes = append(changes, rowChange{r.table, was[k], r.content})
		}
		delete(was, k)
	}
	for _, r := range before {
		if content, gone := was[key{r.table, r.key}]; gone {
			changes = append(changes, rowChange{r.table, content, ""})
		}
	}
	return tables, changes
}

func summarize(rows []storedRow, table string) (s summary) {
	var newest time.Time
	for _, r := range rows {
		if r.table != table {
			continue
		}
		s.Rows++
		if r.writtenAt.After(newest) {
			newest = r.writtenAt
		}
	}
	if s.Rows > 0 {
		s.Newest = newest.UTC().Format("2006-01-02 15:04:05.000000")
	}
	return s
}
