// Package journal keeps a table of calls to other systems: one row for each, written before the call is made and again when its
// outcome is known. Between the two a lease shows that somebody is at it.
//
// Two rules keep it true. Time is the database's, read by clock_timestamp() in the statement that compares it. And each owner has a
// token of its own, drawn at random, which every later write of its repeats: whoever lost the lease to another owner changes nothing.
package journal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/internal/attempt"
	"github.com/watermill-once/watermill-once/internal/sqlname"
)

// Policy is what to do where nobody knows whether a call took effect: dedupe.OnUnknown, in its order.
type Policy int

const (
	Repeat Policy = iota
	Ask           // by Config.Probe
	Refuse
)

// Config of a Journal, as package dedupe documents and checks it.
type Config struct {
	Table     string
	Lease     time.Duration
	Wait      time.Duration // negative: none
	OnUnknown Policy
	Probe     func(ctx context.Context, key string) (outcome json.RawMessage, found bool, err error)
}

func (c *Config) setDefaults() {
	c.Table = cmp.Or(c.Table, DefaultTable)
	c.Lease = cmp.Or(c.Lease, DefaultLease)
	c.Wait = cmp.Or(c.Wait, time.Second)
}

const (
	DefaultTable = "watermill_effects"
	DefaultLease = 30 * time.Second
)

// Journal runs work once for each ID, as far as that can be known.
type Journal struct {
	pool   *pgxpool.Pool
	config Config
	sql    statements
}

// New refuses a bad name of the table.
func New(pool *pgxpool.Pool, config Config) (*Journal, error) {
	config.setDefaults()
	table, err := sqlname.Table(config.Table)
	if err != nil {
		return nil, fmt.Errorf("dedupe: Table: %w", err)
	}
	return &Journal{pool: pool, config: config, sql: statementsFor(table)}, nil
}

// ID is what a call is known by.
type ID struct{ Consumer, Key string }

// Work is the call. An error leaves the row unknown, unless it or what it wraps, of several errors each, has a method NotDone() bool
// that gives true: then the row is free again.
type Work func(ctx context.Context) (Outcome, error)

// Outcome is what to store, for good.
type Outcome struct {
	JSON  []byte // nil: none
	Final bool   // an error is the outcome, and Text its text
	Text  string
	With  []attempt.Statement // what is written in the same transaction
}

// Result is what Run found or did.
type Result struct {
	Outcome
	Fresh bool // the work was done now, by this call of Run
}

// Run does the work under a lease and stores its outcome, or gives what is stored. Panics of the work go on up.
func (j *Journal) Run(ctx context.Context, id ID, fingerprint []byte, work Work) (Result, error) {
	if a, ok := attempt.FromContext(ctx); ok && !a.Outside && !a.Ended() {
		return Result{}, ErrInTransaction
	}
	owner := owner{id, newToken()}
	wait := newWait(j.config.Wait)
	for {
		found, err := j.claim(ctx, owner, fingerprint)
		if err != nil {
			return Result{}, err
		}
		if found.token == owner.token {
			return j.hold(ctx, owner, found.sent, Free, work)
		}
		if fingerprint != nil && found.fingerprint != nil && !bytes.Equal(fingerprint, found.fingerprint) {
			return Result{}, ErrFingerprintMismatch
		}
		unknown := found.state == Unknown || found.state == Started && found.over
		switch {
		case found.state == Done:
			return Result{Outcome: Outcome{JSON: found.outcome}}, nil
		case found.state == Failed:
			return Result{Outcome: Outcome{Final: true, Text: found.lastError}}, nil
		case unknown && j.config.OnUnknown == Refuse:
			return Result{}, ErrUnknown
		case unknown || found.state == Free:
			sent, taken, err := j.takeOver(ctx, owner, found, fingerprint)
			if err != nil {
				return Result{}, err
			}
			if taken {
				if unknown && j.config.OnUnknown == Ask {
					work = j.askFirst(id.Key, work)
				}
				return j.hold(ctx, owner, sent, found.back(), work)
			}
		default: // somebody is at it
			if again, err := wait.pause(ctx); err != nil {
				return Result{}, fmt.Errorf("dedupe: wait for an outcome: %w", err)
			} else if !again {
				return Result{}, ErrInFlight
			}
		}
	}
}

// hold does the work of an owner whose lease began at that time or later. back is what the row is where the work did nothing.
func (j *Journal) hold(ctx context.Context, o owner, began time.Time, back string, work Work) (Result, error) {
	// The process may have slept since the claim, its answer may have come late, and the caller may be gone.
	switch late := time.Since(began) >= j.config.Lease-j.config.Lease/10; {
	case ctx.Err() != nil:
		_ = j.end(ctx, o, ending{state: back, text: "the caller was gone before the call"}, j.brief())
		return Result{}, trouble(fmt.Errorf("dedupe: claim effect: %w", ctx.Err()))
	case late:
		_ = j.end(ctx, o, ending{state: back, text: "the lease was over before the call"}, j.brief())
		return Result{}, ErrLeaseLost
	}
	l := j.startLease(ctx, o, began)
	returned := false
	defer func() {
		l.stop()
		if !returned { // a panic or runtime.Goexit, in the middle of the call for all we know
			_ = j.end(ctx, o, ending{state: Unknown, text: "a panic, or runtime.Goexit"}, j.brief())
		}
	}()
	outcome, err := work(l.ctx)
	var failure ending
	if err != nil {
		failure = j.failure(back, err)
	}
	returned = true
	l.stop()
	if err != nil {
		return Result{}, j.failed(ctx, o, l, failure, err)
	}

	e := ending{state: Done, json: outcome.JSON, with: outcome.With}
	if outcome.Final {
		e.state, e.text = Failed, outcome.Text
	}
	if err := j.end(ctx, o, e, l.left()); err != nil {
		return Result{}, j.lost(ctx, o, err)
	}
	return Result{outcome, true}, nil
}

// askFirst is work that is done only where Probe finds no outcome.
func (j *Journal) askFirst(key string, work Work) Work {
	return func(ctx context.Context) (Outcome, error) {
		outcome, found, err := j.config.Probe(ctx, key)
		refusal := FinalIn(err)
		switch {
		case refusal != nil:
			return Outcome{Final: true, Text: refusal.Error()}, nil
		case err != nil:
			return Outcome{}, &Trouble{fmt.Errorf("dedupe: probe: %w", err)}
		case !found:
			return work(ctx)
		case !json.Valid(outcome):
			return Outcome{}, &Trouble{fmt.Errorf("dedupe: probe: %w", errNoJSON)}
		default:
			return Outcome{JSON: outcome}, nil
		}
	}
}
