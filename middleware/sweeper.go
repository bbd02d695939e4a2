package middleware

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Sweeper deletes what is old, in small batches beside the handlers. It may run in every process of a service: each table is swept by
// one at a time.
type Sweeper struct {
	pool   *pgxpool.Pool
	config SweeperConfig
	tables []sweepable
	logger watermill.LoggerAdapter
}

// Swept tells of one pass over one table.
type Swept struct {
	Table     string        // its name, quoted as in SQL
	Rows      int64         // how many were deleted
	Elsewhere bool          // another process is sweeping the table, and nothing was done here
	Duration  time.Duration // pauses included
	Err       error         // what ended the pass early; Rows are gone all the same
}

// NewSweeper reports all faults of the config at once. The pool must have room for two connections, which a pass holds or takes: of its
// own, or beside those that the handlers need. Its user needs the rights to select, update and delete. PgBouncer may be in between,
// in any mode. logger may be nil.
func NewSweeper(pool *pgxpool.Pool, config SweeperConfig, logger watermill.LoggerAdapter) (*Sweeper, error) {
	faults := []error{config.Validate()}
	switch {
	case pool == nil:
		faults = append(faults, errors.New("pool is nil"))
	case pool.Config().MaxConns < 2:
		faults = append(faults, errors.New("the pool has one connection, and a pass needs two"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("middleware: sweeper: %w", err)
	}
	config.setDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return &Sweeper{pool: pool, config: config, tables: config.sweepables(), logger: logger}, nil
}

// Run sweeps after Delay and then at each Interval, until ctx ends; then it returns nil. It logs what a pass fails with, and goes on at
// the next one, which begins at the table's start again.
func (s *Sweeper) Run(ctx context.Context) error {
	if len(s.tables) == 0 {
		<-ctx.Done()
		return nil
	}
	wait := s.config.Delay + rand.N(s.config.Delay)
	for sleep(ctx, wait) {
		if _, err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.logger.Error("Sweep failed, to be tried again", err, watermill.LogFields{"wait": s.config.Interval})
		}
		wait = s.config.Interval + rand.N(s.config.Interval/10+1)
	}
	return nil
}

// Sweep makes one pass over all tables that have an age, at once: for a cron job, or after a burst. A table that cannot be swept does not
// keep the others from it; the error is that of all. When ctx ends, the pass ends with its error.
func (s *Sweeper) Sweep(ctx context.Context) ([]Swept, error) {
	var (
		all    []Swept
		faults []error
	)
	for _, table := range s.tables {
		if ctx.Err() != nil {
			break
		}
		swept := s.sweep(ctx, table)
		all = append(all, swept)
		if swept.Err != nil {
			faults = append(faults, swept.Err)
		}
		s.logger.Info("Swept", watermill.LogFields{
			"table": swept.Table, "rows": swept.Rows, "elsewhere": swept.Elsewhere, "duration": swept.Duration,
		})
		if s.config.OnSweep != nil {
			s.config.OnSweep(ctx, swept)
		}
	}
	if ctx.Err() != nil && len(faults) == 0 {
		faults = append(faults, fmt.Errorf("middleware: sweep: %w", ctx.Err()))
	}
	return all, errors.Join(faults...)
}

// sleep is false where the context has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
