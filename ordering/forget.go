package ordering

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/watermill-once/internal/keytext"
)

// Forget lets those of a consumer's events that are the last of their entities pass the guard once more, in tx, and gives
// how many entities that is. It is for a deliberate second run, as after a bug was fixed. The others stay
// stale: what came after them is applied already. What stands in the way of the run is the claim, too: see
// once.Config.Forget, which makes both forget.
//
// There is no index on the event id, which would cost each event more than it is worth: this reads all of the
// consumer's entities.
func (c Config) Forget(ctx context.Context, tx pgx.Tx, consumer string, eventIDs ...string) (int64, error) {
	query, ids, err := c.forget(consumer, eventIDs)
	if err != nil || len(eventIDs) == 0 {
		return 0, err
	}
	tag, err := tx.Exec(ctx, query, consumer, ids)
	if err != nil {
		return 0, fmt.Errorf("ordering: forget events: %w", err)
	}
	return tag.RowsAffected(), nil
}

// ForgetSQLTx is Forget for database/sql.
func (c Config) ForgetSQLTx(ctx context.Context, tx *sql.Tx, consumer string, eventIDs ...string) (int64, error) {
	query, ids, err := c.forget(consumer, eventIDs)
	if err != nil || len(eventIDs) == 0 {
		return 0, err
	}
	result, err := tx.ExecContext(ctx, query, consumer, ids)
	if err != nil {
		return 0, fmt.Errorf("ordering: forget events: %w", err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("ordering: forget events: %w", err)
	}
	return n, nil
}

// forgetSQL leaves the null that guardSQL lets an equal position pass by. The ids are one JSON text: arrays are not
// safe on every driver.
func forgetSQL(table string) string {
	return `update ` + table + `
set event_id = null
where consumer = $1::text
  and event_id = any (array(select json_array_elements_text($2::json)))
  and entity = any (array(
    select entity
    from ` + table + `
    where consumer = $1::text
      and event_id = any (array(select json_array_elements_text($2::json)))
    order by entity
    for update
  ))`
}

func (c Config) forget(consumer string, eventIDs []string) (query, ids string, err error) {
	table, err := c.table()
	if err != nil {
		return "", "", err
	}
	if err := keytext.Check(consumer); err != nil {
		return "", "", fmt.Errorf("ordering: consumer %w", err)
	}
	for i, id := range eventIDs {
		if err := keytext.Check(id); err != nil {
			return "", "", fmt.Errorf("ordering: event id %d of %d %w", i+1, len(eventIDs), err)
		}
	}
	text, err := json.Marshal(eventIDs)
	if err != nil {
		return "", "", fmt.Errorf("ordering: forget events: %w", err)
	}
	return forgetSQL(table), string(text), nil
}
