package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

const (
	sweepInFlight = 16
	sweepSlices   = 10      // slices in a turn: what the sweeper does comes in intervals longer than one
	sweepFill     = 1 << 20 // rows in a statement that fills the table
)

// sweep measures what handlers lose while the sweeper deletes claims beside them, in a large table half of which is old, row by
// row: with the handlers alone and with the sweeper in turns. The server writes to the disk, as in production.
func sweep(ctx context.Context, s settings) error {
	batches := &batchTimes{}
	server, err := pgserver.Start(ctx, pgserver.Config{Fsync: true, Log: batches})
	if err != nil {
		return err
	}
	defer server.Close()
	pool, db, err := openPools(ctx, server.URL("postgres"), sweepInFlight)
	if err != nil {
		return err
	}
	defer pool.Close()
	defer db.Close()
	if err := once.InitializeSchema(ctx, once.Pgx(pool)); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, ledger); err != nil {
		return err
	}
	if err := fillClaims(ctx, pool, s.sweepRows); err != nil {
		return err
	}

	config, err := pgxpool.ParseConfig(server.URL("postgres"))
	if err != nil {
		return err
	}
	config.ConnConfig.RuntimeParams["log_min_duration_statement"] = "0"
	own, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer own.Close()
	var deleted int64
	sweeper, err := once.NewSweeper(own, once.SweeperConfig{
		ClaimsAge: 30 * 24 * time.Hour, BrokerRetention: 7 * 24 * time.Hour, BatchSize: s.sweepBatch, Pause: s.sweepPause,
		OnSweep: func(_ context.Context, swept once.Swept) { deleted += swept.Rows },
	}, nil)
	if err != nil {
		return err
	}

	for _, scenario := range []string{"own statement", "queue"} {
		ways, err := waysOf(ctx, scenario, &source{}, pool, db)
		if err != nil {
			return err
		}
		deleted = 0
		alone, beside := timed{do: ways[2].do}, timed{do: ways[2].do}
		for round := range s.rounds + 1 {
			turns := []func() error{
				func() error { return alone.turn(ctx, s) },
				func() error {
					return during(ctx, func(ctx context.Context) error {
						_, err := sweeper.Sweep(ctx)
						return err
					}, func() error { return beside.turn(ctx, s) })
				},
			}
			if round%2 == 1 {
				slices.Reverse(turns)
			}
			for _, turn := range turns {
				if err := turn(); err != nil {
					return err
				}
			}
			if round == 0 { // which does not count
				alone.clear()
				beside.clear()
				batches.take()
				deleted = 0
			}
		}
		took := batches.take()
		if len(took) == 0 {
			return errors.New("the sweeper has done nothing")
		}
		fmt.Printf("%s, %d in flight, %d claims: %.0f/s beside the sweeper, %.0f/s without it: %.2f (least %.2f); "+
			"p99 %v and %v; %d rows deleted in %d batches that hold their locks p50 %v, p99 %v, longest %v: %.2f of the handlers' p99\n",
			scenario, sweepInFlight, s.sweepRows, median(beside.rates), median(alone.rates), ratio(beside.figures, alone.figures), least(beside.figures, alone.figures),
			percentile(beside.took, 99), percentile(alone.took, 99),
			deleted, len(took), percentile(took, 50), percentile(took, 99), slices.Max(took).Round(time.Microsecond),
			slices.Max(took).Seconds()/percentile(beside.took, 99).Seconds())
	}
	return nil
}

func openPools(ctx context.Context, address string, inFlight int) (*pgxpool.Pool, *sql.DB, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns = int32(inFlight)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	db, err := sql.Open("pgx", address)
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return pool, db, nil
}

// fillClaims writes rows claims, every other one two months old, so that no page is without either.
func fillClaims(ctx context.Context, pool *pgxpool.Pool, rows int) error {
	start := time.Now()
	for first := 0; first < rows; first += sweepFill {
		_, err := pool.Exec(ctx, `
insert into watermill_processed_events (consumer, event_id, processed_at)
select 'ours', '0191f1c2-0000-7000-8000-' || lpad(to_hex(n), 12, '0'), now() - n % 2 * interval '60 days'
from generate_series($1::bigint, $2::bigint) as n`, first, min(first+sweepFill, rows)-1)
		if err != nil {
			return err
		}
	}
	if _, err := pool.Exec(ctx, `vacuum analyze watermill_processed_events`); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, `checkpoint`); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d claims written in %v\n", rows, time.Since(start).Round(time.Second))
	return nil
}

// timed is a way with the time that each message takes.
type timed struct {
	do func(context.Context) error
	figures
	mu   sync.Mutex
	took []time.Duration
}

func (t *timed) turn(ctx context.Context, s settings) error {
	n, took, err := slice(ctx, sweepSlices*s.slice, sweepInFlight, func(ctx context.Context) error {
		start := time.Now()
		err := t.do(ctx)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.took = append(t.took, time.Since(start))
		return err
	})
	t.rates = append(t.rates, float64(n)/took.Seconds())
	return err
}

func (t *timed) clear() { t.rates, t.took = nil, nil }

// least is the worst of the rounds' ratios.
func least(a, b figures) float64 {
	worst := a.rates[0] / b.rates[0]
	for i := range a.rates {
		worst = min(worst, a.rates[i]/b.rates[i])
	}
	return worst
}

// batchTimes reads out of the server's log for how long each batch held its locks: its statement, and the COMMIT behind it.
type batchTimes struct {
	mu   sync.Mutex
	rest []byte        // of a line that is not complete
	open time.Duration // of a statement whose COMMIT is to come
	took []time.Duration
}

var logged = regexp.MustCompile(`duration: ([0-9.]+) ms  execute [^:]*: (delete|commit)`)

func (b *batchTimes) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := bytes.Split(append(b.rest, data...), []byte("\n"))
	b.rest = bytes.Clone(lines[len(lines)-1])
	for _, line := range lines[:len(lines)-1] {
		found := logged.FindSubmatch(line)
		if found == nil {
			continue
		}
		d, err := time.ParseDuration(string(found[1]) + "ms")
		if err != nil {
			return 0, err
		}
		if string(found[2]) == "commit" {
			b.took = append(b.took, b.open+d)
		} else {
			b.open = d
		}
	}
	return len(data), nil
}

// take gives what has been noted and forgets it.
func (b *batchTimes) take() []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	took := b.took
	b.took = nil
	return took
}
