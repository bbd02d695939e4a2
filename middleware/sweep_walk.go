package middleware

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// sweptPages is how many pages a step reads at most.
	sweptPages = 128

	// stepTimeout bounds a step that meets a table under DDL, or a network that is gone.
	stepTimeout = time.Minute
)

// walk is a pass over a table, from place to place.
type walk struct {
	pool  *pgxpool.Pool
	table sweepable
	batch int

	page  int64  // the walk has come up to here
	place string // and on that page up to this row; "": to none
}

// step reads on until it has found as many old rows as a batch may have, or has read enough, and then deletes those rows. So the
// pages are in memory before the first row is locked. It gives the number of rows deleted.
func (w *walk) step(ctx context.Context, pages int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	conn, err := w.pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release() // which destroys a connection that is not idle

	end := min(w.page+sweptPages, pages)
	from, to := w.place, fmt.Sprintf("(%d,0)", end)
	if from == "" {
		from = fmt.Sprintf("(%d,0)", w.page) // rows are counted from 1
	}
	var (
		found int64
		last  string
	)
	age := w.table.age.Microseconds()
	if err := conn.QueryRow(ctx, findOldSQL(w.table), from, to, age, w.batch).Scan(&found, &last); err != nil {
		return 0, err
	}
	deleted := int64(0)
	if found > 0 {
		if deleted, err = deleteOld(ctx, conn.Conn(), w.table, from, last, w.batch); err != nil {
			return 0, err
		}
	}
	if w.place = last; found < int64(w.batch) {
		w.page, w.place = end, ""
	}
	return deleted, nil
}

// old is the condition for a row between two places to be swept, with the age ($3) in microseconds. It is written so that no index fits:
// the only way to the rows is by their places.
func (s sweepable) old(to string) string {
	return `ctid > $1::text::tid
      and ctid ` + to + ` $2::text::tid
      and coalesce(` + s.since + `, 'infinity') < now() - $3::bigint * interval '1 microsecond'`
}

// findOldSQL finds up to $4 rows, and where the last one stands. It locks nothing.
func findOldSQL(table sweepable) string {
	return `select count(*), coalesce(max(place)::text, '')
from (
    select ctid as place
    from only ` + table.table + `
    where ` + table.old("<") + `
    limit $4::bigint
) as old`
}

// deleteOldSQL deletes what findOldSQL has found. It waits for no row, and so never keeps its locks while it waits.
func deleteOldSQL(table sweepable) string {
	return `delete from only ` + table.table + `
where ctid = any (array(
    select ctid
    from only ` + table.table + `
    where ` + table.old("<=") + `
    limit $4::bigint
    for update skip locked
))`
}

// deleteOld is one transaction, in one round trip. It need not be on disk when it ends: what a crash takes back is swept the next time,
// and a claim made anew meanwhile is committed behind it.
func deleteOld(ctx context.Context, conn *pgx.Conn, table sweepable, from, last string, limit int) (deleted int64, err error) {
	var batch pgx.Batch
	batch.BeginTx(beginOptions)
	batch.Queue("set local synchronous_commit = off")
	batch.Queue(deleteOldSQL(table), from, last, table.age.Microseconds(), limit)
	batch.Queue("commit")
	results := conn.SendBatch(ctx, &batch)
	for range batch.QueuedQueries {
		tag, err := results.Exec()
		if err != nil {
			_ = results.Close() // repeats err
			return 0, err
		}
		deleted += tag.RowsAffected()
	}
	return deleted, results.Close()
}
