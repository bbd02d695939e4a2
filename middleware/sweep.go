package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// sweep walks once over the pages of a table, from the first to the last that it has now. It does not look for old rows by an index: rows
// that are deleted make room for new ones, so that after a while old and new stand side by side all over the table, and then the ranges of
// a BRIN index tell nothing. The walk's work is bounded in each step, whatever the age of the rows, and a pass reads each page once.
func (s *Sweeper) sweep(ctx context.Context, table sweepable) Swept {
	swept, start := Swept{Table: table.table}, time.Now()
	err := s.alone(ctx, table.table, func(pages int64, held func() error) error {
		w := walk{pool: s.pool, table: table, batch: s.config.BatchSize}
		for w.page < pages {
			n, err := w.step(ctx, pages)
			swept.Rows += n
			if err != nil {
				return err
			}
			if !sleep(ctx, s.config.Pause) {
				return ctx.Err()
			}
			if err := held(); err != nil {
				return err
			}
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

// sweepLock is the first half of the advisory lock of a pass, the ASCII of "wmsw"; the second is the table's oid.
const sweepLock = 0x776d7377

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
