package dedupe

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/watermill-once/internal/keytext"
)

// Forget deletes the claims of a consumer's events in tx, which must be READ COMMITTED, and gives how many there were: the
// next delivery of each is fresh. It is for a deliberate second run, as after a bug was fixed; an id that was never
// claimed is no error. An event that is being handled at the moment is waited for, and its claim counts if that
// transaction commits. Deliveries that come until tx ends wait for it.
//
// Versions know such an event too: once.Config.Forget makes both forget it. A process that has it in its Cache goes on
// taking it for a duplicate for CacheTTL.
func (c Config) Forget(ctx context.Context, tx pgx.Tx, consumer string, eventIDs ...string) (int64, error) {
	statements, args, err := c.forget(consumer, eventIDs)
	if err != nil || len(eventIDs) == 0 {
		return 0, err
	}
	var batch pgx.Batch
	for _, statement := range statements {
		batch.Queue(statement, args...)
	}
	results := tx.SendBatch(ctx, &batch)
	var affected [2]int64
	for i := range affected {
		tag, err := results.Exec()
		if err != nil {
			_ = results.Close() // repeats err
			return 0, fmt.Errorf("dedupe: forget events: %w", err)
		}
		affected[i] = tag.RowsAffected()
	}
	if err := results.Close(); err != nil {
		return 0, fmt.Errorf("dedupe: forget events: %w", err)
	}
	return affected[1] - affected[0], nil
}

// ForgetSQLTx is Forget for database/sql.
func (c Config) ForgetSQLTx(ctx context.Context, tx *sql.Tx, consumer string, eventIDs ...string) (int64, error) {
	statements, args, err := c.forget(consumer, eventIDs)
	if err != nil || len(eventIDs) == 0 {
		return 0, err
	}
	var affected [2]int64
	for i, statement := range statements {
		result, err := tx.ExecContext(ctx, statement, args...)
		if err == nil {
			affected[i], err = result.RowsAffected()
		}
		if err != nil {
			return 0, fmt.Errorf("dedupe: forget events: %w", err)
		}
	}
	return affected[1] - affected[0], nil
}

// forgetSQL claims the events before it deletes their claims: a delete alone sees no claim that another transaction has
// not committed yet, and would wait for none. All in one order, so that two of its kind cannot wait for each other. The
// ids are one JSON text: arrays are not safe on every driver.
func forgetSQL(table string) [2]string {
	return [2]string{
		`insert into ` + table + ` (consumer, event_id)
select $1::text, id
from (
  select distinct id collate "C" as id
  from json_array_elements_text($2::json) as ids (id)
) as ids
order by id
on conflict (consumer, event_id) do update
set event_id = excluded.event_id
where false -- which locks the claim`,
		`delete from ` + table + `
where consumer = $1::text
  and event_id = any (array(select json_array_elements_text($2::json)))`,
	}
}

func (c Config) forget(consumer string, eventIDs []string) (statements [2]string, args []any, err error) {
	table, err := c.table()
	if err != nil {
		return statements, nil, err
	}
	if err := keytext.Check(consumer); err != nil {
		return statements, nil, fmt.Errorf("dedupe: consumer %w", err)
	}
	for i, id := range eventIDs {
		if err := keytext.Check(id); err != nil {
			return statements, nil, fmt.Errorf("%w: event id %d of %d %w", ErrInvalidKey, i+1, len(eventIDs), err)
		}
	}
	ids, err := json.Marshal(eventIDs)
	if err != nil {
		return statements, nil, fmt.Errorf("dedupe: forget events: %w", err)
	}
	return forgetSQL(table), []any{consumer, string(ids)}, nil
}
