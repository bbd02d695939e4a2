package dedupe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/watermill-once/internal/journal"
	"github.com/watermill-once/watermill-once/internal/keytext"
)

// Resolve stores the outcome of an unknown call, found out by a person: every later Do with that key gets it. outcome is written as
// JSON, and read as the T of that Do. A key that is not unknown is left as it is, with ErrNotUnknown. For a handler of once.Leased,
// outcome is nil and key the event's id.
func (e *Effects) Resolve(ctx context.Context, key string, outcome any) error {
	return e.journal.InTx(ctx, func(tx pgx.Tx) error { return e.ResolveTx(ctx, tx, key, outcome) })
}

// ResolveTx is Resolve in tx, which must be READ COMMITTED: so that an outcome, what follows from it, and the message that is sent
// again commit together. Callers of Do with that key wait until tx ends.
func (e *Effects) ResolveTx(ctx context.Context, tx pgx.Tx, key string, outcome any) error {
	text, err := json.Marshal(outcome)
	if err != nil {
		return fmt.Errorf("dedupe: resolve effect: %w", err)
	}
	return e.resolve(ctx, tx, key, journal.Outcome{JSON: text}, false)
}

// ResolveNotDone says that an unknown call did not take effect: the next Do with that key calls.
func (e *Effects) ResolveNotDone(ctx context.Context, key string) error {
	return e.journal.InTx(ctx, func(tx pgx.Tx) error { return e.ResolveNotDoneTx(ctx, tx, key) })
}

// ResolveNotDoneTx is ResolveNotDone in tx, as ResolveTx is Resolve.
func (e *Effects) ResolveNotDoneTx(ctx context.Context, tx pgx.Tx, key string) error {
	return e.resolve(ctx, tx, key, journal.Outcome{}, true)
}

// ResolveFinal says that an unknown call did not take effect and is not to be made: every later Do with that key returns a
// *FinalError with reason.
func (e *Effects) ResolveFinal(ctx context.Context, key string, reason error) error {
	return e.journal.InTx(ctx, func(tx pgx.Tx) error { return e.ResolveFinalTx(ctx, tx, key, reason) })
}

// ResolveFinalTx is ResolveFinal in tx, as ResolveTx is Resolve.
func (e *Effects) ResolveFinalTx(ctx context.Context, tx pgx.Tx, key string, reason error) error {
	if reason == nil {
		return errors.New("dedupe: resolve effect: reason is nil")
	}
	return e.resolve(ctx, tx, key, journal.Outcome{Final: true, Text: reason.Error()}, false)
}

func (e *Effects) resolve(ctx context.Context, tx pgx.Tx, key string, o journal.Outcome, free bool) error {
	if err := keytext.Check(key); err != nil {
		return fmt.Errorf("%w: an effect's key %w", ErrInvalidKey, err)
	}
	return e.journal.Resolve(ctx, tx, e.id(key), o, free)
}

// EffectState is where a call stands.
type EffectState int

const (
	// Running: in flight, under a lease.
	Running EffectState = iota
	// Unknown: it ended, or its lease did, and nobody knows whether it took effect.
	Unknown
	// Free: it did not take effect. The next Do calls.
	Free
)

func (s EffectState) String() string {
	switch s {
	case Running:
		return "running"
	case Unknown:
		return "unknown"
	case Free:
		return "free"
	default:
		return fmt.Sprintf("EffectState(%d)", int(s))
	}
}

// Effect is a call that is not done, as an operator sees it. Times are the database's.
type Effect struct {
	Key        string
	State      EffectState
	Attempts   int       // the one in flight included
	StartedAt  time.Time // of the last attempt
	LeaseUntil time.Time // of a process that is at it, or has died; zero where the attempt has ended
	LastError  string    // of the last attempt that ended in one
}

// List gives up to limit calls of one state, beginning with the one that was started first.
func (e *Effects) List(ctx context.Context, state EffectState, limit int) ([]Effect, error) {
	var stored string
	switch state {
	case Running:
		stored = journal.Started
	case Unknown:
		stored = journal.Unknown
	case Free:
		stored = journal.Free
	default:
		return nil, fmt.Errorf("dedupe: list effects: there is no %s", state)
	}
	rows, err := e.journal.List(ctx, e.config.Consumer, stored, limit)
	if err != nil {
		return nil, err
	}
	list := make([]Effect, len(rows))
	for i, r := range rows {
		list[i] = Effect{r.Key, state, r.Attempts, r.StartedAt, r.LeaseUntil, r.LastError}
	}
	return list, nil
}

// EffectCounts counts the calls that are not done.
type EffectCounts struct{ Running, Unknown, Free int }

// Count is for metrics and alarms: one that stays Unknown for long waits for a retry or, under Refuse, for a person.
func (e *Effects) Count(ctx context.Context) (EffectCounts, error) {
	running, unknown, free, err := e.journal.Count(ctx, e.config.Consumer)
	return EffectCounts{running, unknown, free}, err
}
