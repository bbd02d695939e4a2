package dedupe

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/watermill-once/internal/keytext"
)

// ClaimSQL is the statement that claims an event, for a batch or pipeline of one's own. Its arguments are the
// consumer ($1) and the event id ($2), both text, and with Fingerprint the Digest ($3), bytea: where the claim has
// another one, the statement fails with SQLSTATE 23502. One row affected: fresh. None: a duplicate. It waits while
// another transaction holds the same claim uncommitted. A Config that Validate refuses gives a statement that
// PostgreSQL refuses.
func (c Config) ClaimSQL() string {
	if c.Fingerprint {
		return claimDigestSQL(c.QuotedTable())
	}
	return claimSQL(c.QuotedTable())
}

// Claim claims an event for a consumer in tx, which must be READ COMMITTED. It comes first in the transaction: what was
// written before it would be written once more by every duplicate. On a duplicate, leave the rest and roll back. It
// knows no payload: with Fingerprint use ClaimSQL.
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

// claimDigestSQL tells a duplicate from another event of the same id in the one statement: only the latter reaches the
// update, which the primary key cannot take. A claim without a digest compares as unknown, and so is a duplicate.
func claimDigestSQL(table string) string {
	return `insert into ` + table + ` as claim (consumer, event_id, digest)
values ($1::text, $2::text, $3::bytea)
on conflict (consumer, event_id) do update
set event_id = null
where claim.digest <> excluded.digest`
}

func (c Config) claim(consumer, eventID string) (query string, err error) {
	table, err := c.table()
	if err != nil {
		return "", err
	}
	if c.Fingerprint {
		return "", errors.New("dedupe: claim event: Fingerprint needs the message: use ClaimSQL with Digest")
	}
	if err := keytext.Check(consumer); err != nil {
		return "", fmt.Errorf("dedupe: consumer %w", err)
	}
	if err := keytext.Check(eventID); err != nil {
		return "", fmt.Errorf("%w: event id %w", ErrInvalidKey, err)
	}
	return claimSQL(table), nil
}
