package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Row is what an operator sees of a row.
type Row struct {
	Key        string
	Attempts   int
	StartedAt  time.Time
	LeaseUntil time.Time // zero: none
	LastError  string
}

// The partial index serves what is open.
const open = `state in ('started', 'unknown', 'free')`

const listSQL = `select key, attempts, started_at, lease_until, coalesce(last_error, '')
from @table
where consumer = $1::text
  and ` + open + `
  and case
    when state <> 'started' then state
    when lease_until <= clock_timestamp() then 'unknown'
    else state
  end = $2::text
order by started_at, key
limit $3::bigint`

// List gives the rows of one state, those first that were started first. state is Started, Unknown or Free.
func (j *Journal) List(ctx context.Context, consumer, state string, limit int) ([]Row, error) {
	rows, err := j.pool.Query(ctx, j.sql.list, consumer, state, limit)
	if err != nil {
		return nil, trouble(fmt.Errorf("dedupe: list effects: %w", err))
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Row, err error) {
		var leaseUntil *time.Time
		err = row.Scan(&r.Key, &r.Attempts, &r.StartedAt, &leaseUntil, &r.LastError)
		if leaseUntil != nil {
			r.LeaseUntil = *leaseUntil
		}
		return r, err
	})
	if err != nil {
		return nil, trouble(fmt.Errorf("dedupe: list effects: %w", err))
	}
	return list, nil
}

const countSQL = `select
  count(*) filter (where state = 'started' and lease_until > clock_timestamp()),
  count(*) filter (where state = 'unknown' or state = 'started' and lease_until <= clock_timestamp()),
  count(*) filter (where state = 'free')
from @table
where consumer = $1::text
  and ` + open

// Count counts the rows that are open.
func (j *Journal) Count(ctx context.Context, consumer string) (running, unknown, free int, err error) {
	err = j.pool.QueryRow(ctx, j.sql.count, consumer).Scan(&running, &unknown, &free)
	if err != nil {
		return 0, 0, 0, trouble(fmt.Errorf("dedupe: count effects: %w", err))
	}
	return running, unknown, free, nil
}

// The new token keeps out an owner that is still at it.
const resolveSQL = `update @table
set token = $3::bigint,
    state = $4::text,
    outcome = $5::text::json,
    last_error = coalesce($6::text, last_error),
    lease_until = null,
    updated_at = clock_timestamp()
where consumer = $1::text
  and key = $2::text
  and (state = 'unknown' or state = 'started' and lease_until <= clock_timestamp())`

// Resolve ends an unknown row in tx: Done with an outcome, Failed with a text, or Free.
func (j *Journal) Resolve(ctx context.Context, tx pgx.Tx, id ID, o Outcome, free bool) error {
	state := Done
	var outcome, text *string
	switch {
	case free:
		state = Free
	case o.Final:
		s := clean(tx.Conn(), o.Text)
		state, text = Failed, &s
	default:
		s := validUTF8(tx.Conn(), o.JSON)
		outcome = &s
	}
	tag, err := tx.Exec(ctx, j.sql.resolve, id.Consumer, id.Key, newToken(), state, outcome, text)
	switch {
	case err != nil:
		return trouble(fmt.Errorf("dedupe: resolve effect: %w", err))
	case tag.RowsAffected() == 0:
		return j.notUnknown(ctx, tx, id)
	}
	return nil
}

// notUnknown tells what there is instead.
func (j *Journal) notUnknown(ctx context.Context, tx pgx.Tx, id ID) error {
	var found entry
	err := tx.QueryRow(ctx, j.sql.look, id.Consumer, id.Key).
		Scan(&found.token, &found.state, &found.over, &found.fingerprint, &found.outcome, &found.lastError)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ErrNotUnknown
	case err != nil:
		return trouble(fmt.Errorf("dedupe: resolve effect: %w", err))
	default:
		return fmt.Errorf("%w: it is %s", ErrNotUnknown, found.state)
	}
}

// InTx runs resolve, which gives its errors as Resolve does, in a transaction of its own.
func (j *Journal) InTx(ctx context.Context, resolve func(tx pgx.Tx) error) error {
	var unresolved error
	err := pgx.BeginTxFunc(ctx, j.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		unresolved = resolve(tx)
		return unresolved
	})
	if err != nil && unresolved == nil {
		return trouble(fmt.Errorf("dedupe: resolve effect: %w", err))
	}
	return unresolved
}
