package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// sweep walks once over the pages of a table, from the first to the last that it has now. It does not look for old rows by an index: rows
// that are deleted make room for new ones, so that after a while old and new stand side by side all over the table, and then the ranges of
// a BRIN index tell nothing. The walk's work is bounded in each step, whatever the age of the rows, and a pass reads each page once.
func (s *Sweeper) sweep(ctx context.Context, table sweepable) Swept {
	swept, start := Swept{Table: table.table}, time.Now()
	err := s.alone(ctx, table.table, func(pages int64, held func() error) error {
		query := sweepSQL(table)
		for first := int64(0); first < pages; {
			from, end := fmt.Sprintf("(%d,0)", first), min(first+sweptPages, pages)
			for full := true; full; {
				n, last, err := s.batch(ctx, query, from, fmt.Sprintf("(%d,0)", end), table.age)
				if err != nil {
					return err
				}
				swept.Rows += n
				from, full = last, n == int64(s.config.BatchSize)
				if !sleep(ctx, s.config.Pause) {
					return ctx.Err()
				}
				if err := held(); err != nil {
					return err
				}
			}
			first = end
		}
		return nil
	})
	switch {
	case errors.Is(err, errElsewhere):
		swept.Elsewhere = true
	case err != nil:
		swept.Err = fmt.Errorf("middleware: sweep %s: %w", table.table, err)
	}
	swept.Duration = time.Since(start)
	return swept
}

const (
	// sweptPages is how many pages a batch reads at most.
	sweptPages = 128

	// sweepLock is the first half of the advisory lock of a pass, the ASCII of "wmsw"; the second is the table's oid.
	sweepLock = 0x776d7377

	// batchTimeout bounds a batch that meets a table under DDL, or a network that is gone.
	batchTimeout = time.Minute
)

var errElsewhere = errors.New("another process is sweeping the table")

// alone calls f while no other process sweeps the table. The lock is a transaction's, which PgBouncer keeps on one server connection in
// every mode. The transaction stays open and idle for the pass; in READ COMMITTED it then has neither a snapshot nor a transaction id, and
// so holds up no vacuum. held tells whether it is still there.
func (s *Sweeper) alone(ctx context.Context, table string, f func(pages int64, held func() error) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // which destroys a connection that is not idle
	tx, err := conn.BeginTx(ctx, beginOptions)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = tx.Rollback(ctx)
	}()

	var (
		free, plain bool
		pages       int64
	)
	err = tx.QueryRow(ctx, `
select pg_try_advisory_xact_lock($1::int, oid::int), relkind = 'r', pg_relation_size(oid) / current_setting('block_size')::bigint
from pg_class
where oid = $2::text::regclass`, sweepLock, table).Scan(&free, &plain, &pages)
	switch {
	case err != nil:
		return err
	case !plain:
		return errors.New("it is no plain table: what is partitioned is swept by dropping partitions")
	case !free:
		return errElsewhere
	}
	held := func() error {
		// In the simple protocol, which leaves no portal open: the last one would keep its snapshot until the next statement.
		_, err := conn.Conn().PgConn().Exec(ctx, "select 1").ReadAll()
		return err
	}
	if err := held(); err != nil {
		return err
	}
	return f(pages, held)
}

// sweepSQL deletes up to $4 of the rows between two places that are older than $3 microseconds, and tells how many there were and
// where the last one stood. It waits for no row, and so never keeps its locks while it waits. The age is written so that no index fits: the
// only way is by the places.
func sweepSQL(table sweepable) string {
	return `with old as materialized (
    select ctid as place
    from ` + table.table + `
    where ctid >= $1::text::tid
      and ctid < $2::text::tid
      and now() - ` + table.since + ` > $3::bigint * interval '1 microsecond'
    limit $4::bigint
    for update skip locked
), gone as (
    delete from ` + table.table + `
    where ctid = any (array(select place from old))
)
select count(*), coalesce(max(place)::text, '')
from old`
}

// batch is one transaction, in one round trip. It need not be on disk when it ends: what a crash takes back is swept the next time, and a
// claim made anew meanwhile is committed behind it.
func (s *Sweeper) batch(ctx context.Context, query, from, to string, age time.Duration) (n int64, last string, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return 0, "", err
	}
	defer conn.Release()
	var batch pgx.Batch
	batch.BeginTx(beginOptions)
	batch.Queue("set local synchronous_commit = off")
	batch.Queue(query, from, to, age.Microseconds(), s.config.BatchSize).QueryRow(func(row pgx.Row) error {
		return row.Scan(&n, &last)
	})
	batch.Queue("commit")
	return n, last, conn.Conn().SendBatch(ctx, &batch).Close()
}
