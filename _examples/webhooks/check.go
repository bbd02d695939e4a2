package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	once "github.com/watermill-once/watermill-once/middleware"
)

// result is an invariant, and what was found to break it.
type result struct {
	invariant string
	broken    error
}

// check looks at the tables, not at what the consumers say of themselves, wherever the tables can tell.
func (s *service) check(ctx context.Context, p *provider, expected outcome) ([]result, error) {
	const query = `
select
  (select count(*) from ledger_entries),
  (select coalesce(sum(amount), 0)::bigint from ledger_entries),
  (select count(*) from cards),
  (select count(*) from emails),
  (select count(*) from (
    select changed_at < lag(changed_at) over (partition by card order by id) as back from emails
  ) e where back),
  (select count(*) from cards c where status is distinct from (
    select status from emails e where e.card = c.card order by id desc limit 1
  )),
  (select count(*) from watermill_outbox)`
	var entries, amount, cards, emails, backwards, outdated, unsent int64
	err := s.pool.QueryRow(ctx, query).Scan(&entries, &amount, &cards, &emails, &backwards, &outdated, &unsent)
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	wrong, err := s.wrongCards(ctx, expected)
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	applied, stale := s.counts.number("cards", once.Fresh), s.counts.number("cards", once.Stale)
	return []result{
		{"each event is in the ledger once", equal("entries", entries, int64(expected.events))},
		{"the amounts add up", equal("sum", amount, expected.amount)},
		{"each card is there once", equal("cards", cards, int64(len(expected.cards)))},
		{"each card has the status of its newest event", wrong},
		{"each event was applied to its card, or older than the card", equal("events", applied+stale, expected.events)},
		{"each applied event sent one e-mail", equal("e-mails", emails, int64(applied))},
		{"the e-mails of a card are in the order of its changes", equal("e-mails out of order", backwards, 0)},
		{"the last e-mail of a card has its status", equal("cards", outdated, 0)},
		{"nothing is left in the outbox", equal("messages", unsent, 0)},
		{"nothing is in the poison queue", equal("messages", s.counts.poisoned(), 0)},
		{"every forged delivery was refused", equal("deliveries", p.refused.Load(), p.forged.Load())},
	}, nil
}

func equal[T comparable](what string, got, expected T) error {
	if got == expected {
		return nil
	}
	return fmt.Errorf("%s: %v, expected %v", what, got, expected)
}

// wrongCards names the first few cards whose status is not that of their newest event.
func (s *service) wrongCards(ctx context.Context, expected outcome) (broken, err error) {
	rows, err := s.pool.Query(ctx, "select card, status from cards order by card")
	if err != nil {
		return nil, err
	}
	var (
		wrong        []string
		card, status string
	)
	_, err = pgx.ForEachRow(rows, []any{&card, &status}, func() error {
		if !expected.cards[card].statuses[status] {
			wrong = append(wrong, fmt.Sprintf("%s is %s", card, status))
		}
		return nil
	})
	if err != nil || len(wrong) == 0 {
		return nil, err
	}
	return errors.New(strings.Join(wrong[:min(len(wrong), 5)], ", ")), nil
}

// fingerprint changes with any change of a table.
func (s *service) fingerprint(ctx context.Context) (string, error) {
	const query = `
select concat_ws(' ',
  (select md5(string_agg(c::text, '|' order by card)) from cards c),
  (select md5(string_agg(l::text, '|' order by event_id)) from ledger_entries l),
  (select md5(string_agg(e::text, '|' order by id)) from emails e))`
	var sum string
	if err := s.pool.QueryRow(ctx, query).Scan(&sum); err != nil {
		return "", fmt.Errorf("fingerprint: %w", err)
	}
	return sum, nil
}
