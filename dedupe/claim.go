package dedupe

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/watermill-once/internal/keytext"
)

// ClaimSQL is the statement that claims an event, for a batch or pipeline of one's own. Its arguments are the
// consumer ($1) and the event id ($2), both text. One row affected: fresh. None: a duplicate. It waits while
// another transaction holds the same claim uncommitted. A Config that Validate refuses gives a statement that
// PostgreSQL refuses.
func (c Config) ClaimSQL() string {
	return claimSQL(c.QuotedTable())
}

// Claim claims an event for a consumer in tx, which must be READ COMMITTED. It comes first in the transaction: what was
// written before it would be written once more by every duplicate. On a duplicate, leave the rest and roll back.
func (c Config) Claim(ctx context.Context, tx pgx.Tx, consumer, eventID string) (fresh bool, err error) {
	query, err := c.claim(consumer, eventID)
	if err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, query, consumer, eventID)
	if err != nil {
		return false, fmt.Errorf("dedupe: claim event: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// ClaimSQLTx is Claim for database/sql.
func (c Config) ClaimSQLTx(ctx context.Context, tx *sql.Tx, consumer, eventID string) (fresh bool, err error) {
	query, err := c.claim(consumer, eventID)
	if err != nil {
		return false, err
	}
	result, err := tx.ExecContext(ctx, query, consumer, eventID)
	if err != nil {
		return false, fmt.Errorf("dedupe: claim event: %w", err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("dedupe: claim event: %w", err)
	}
	return n == 1, nil
}

// claimSQL casts its parameters, so that drivers and pgx exec modes that do not ask the server for their types work
// too.
func claimSQL(table string) string {
	return `insert into ` + table + ` (consumer, event_id)
values ($1::text, $2::text)
on conflict (consumer, event_id) do nothing`
}

func (c Config) claim(consumer, eventID string) (query string, err error) {
	table, err := c.table()
	if err != nil {
		return "", err
	}
	if err := keytext.Check(consumer); err != nil {
		return "", fmt.Errorf("dedupe: consumer %w", err)
	}
	if err := keytext.Check(eventID); err != nil {
		return "", fmt.Errorf("%w: event id %w", ErrInvalidKey, err)
	}
	return claimSQL(table), nil
}
