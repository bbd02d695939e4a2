package ordering

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/watermill-once/internal/keytext"
)

// GuardSQL is the statement that lets an event pass or not, for a batch or pipeline of one's own. Its arguments are
// the consumer ($1), the entity ($2), the version ($3), the tie-break ($4), the event id ($5, null or empty if
// there is none) and whether the version is a time ($6). One row affected: apply. None: stale. It waits while
// another transaction holds the entity. A Config that Validate refuses gives a statement that PostgreSQL refuses.
func (c Config) GuardSQL() string {
	return guardSQL(c.QuotedTable())
}

// Guard tells whether an event applies to its entity, and if so records it as the last one applied, in tx, which
// must be READ COMMITTED. An event without an id ("") is never taken for one that was applied before.
func (c Config) Guard(ctx context.Context, tx pgx.Tx, consumer string, p Position, eventID string) (bool, error) {
	query, err := c.guard(consumer, p, eventID)
	if err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, query, consumer, p.Entity, p.Version, p.TieBreak, eventID, p.Clock)
	if err != nil {
		return false, fmt.Errorf("ordering: guard entity: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// GuardSQLTx is Guard for database/sql.
func (c Config) GuardSQLTx(ctx context.Context, tx *sql.Tx, consumer string, p Position, eventID string) (bool, error) {
	query, err := c.guard(consumer, p, eventID)
	if err != nil {
		return false, err
	}
	result, err := tx.ExecContext(ctx, query, consumer, p.Entity, p.Version, p.TieBreak, eventID, p.Clock)
	if err != nil {
		return false, fmt.Errorf("ordering: guard entity: %w", err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("ordering: guard entity: %w", err)
	}
	return n == 1, nil
}

// guardSQL compares (version, tie_break) pairs. Between equal ones:
//
//   - event_id null: the event applied last is to run again (its claim was deleted on purpose), so an equal one passes;
//   - a time: another event passes, and so does one without an id, since it cannot be told from another;
//   - a number: none passes.
//
// An event without an id leaves an empty one, since null has that other meaning. The casts serve drivers and pgx
// exec modes that do not ask the server for the types.
func guardSQL(table string) string {
	return `insert into ` + table + ` as applied (consumer, entity, version, tie_break, event_id)
values ($1::text, $2::text, $3::bigint, $4::text, coalesce($5::text, ''))
on conflict (consumer, entity) do update
set version = excluded.version,
    tie_break = excluded.tie_break,
    event_id = excluded.event_id,
    updated_at = excluded.updated_at
where (applied.version, applied.tie_break) < (excluded.version, excluded.tie_break)
   or applied.version = excluded.version
  and applied.tie_break = excluded.tie_break
  and (applied.event_id is null
       or $6::boolean and (excluded.event_id = '' or applied.event_id <> excluded.event_id))`
}

func (c Config) guard(consumer string, p Position, eventID string) (query string, err error) {
	table, err := c.table()
	if err != nil {
		return "", err
	}
	if err := keytext.Check(consumer); err != nil {
		return "", fmt.Errorf("ordering: consumer %w", err)
	}
	if err := p.check(); err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalidPosition, err)
	}
	if eventID != "" {
		if err := keytext.Check(eventID); err != nil {
			return "", fmt.Errorf("ordering: event id %w", err)
		}
	}
	return guardSQL(table), nil
}
