// Package attempt is what the packages share about one run of a handler: the transaction it runs in, found on the
// message's context, and what waits in the process to be written together with its COMMIT.
package attempt

import (
	"context"
	"database/sql"
	"errors"
	"sync"
)

// Statement is one SQL statement and its arguments.
type Statement struct {
	SQL  string
	Args []any
}

// ErrEnded is returned by everything that is asked of an attempt after its transaction has ended.
var ErrEnded = errors.New("the transaction has ended")

// Attempt is one run of a handler inside one transaction. Its methods may be called from several goroutines.
type Attempt struct {
	// Headers are the metadata that what this attempt produces inherits: correlation id and trace.
	Headers map[string]string

	mu     sync.Mutex
	ended  bool
	queued []Statement
	rows   []Row
	handed *sql.Tx
}

// Mark is a point in an attempt to go back to, as a savepoint is in its transaction.
type Mark struct{ queued, rows int }

type contextKey struct{}

// NewContext puts a on the context.
func NewContext(ctx context.Context, a *Attempt) context.Context {
	return context.WithValue(ctx, contextKey{}, a)
}

// FromContext finds the attempt whose handler is running.
func FromContext(ctx context.Context) (*Attempt, bool) {
	a, ok := ctx.Value(contextKey{}).(*Attempt)
	return a, ok
}

// Carrier is a transaction handed to a handler, which knows the attempt that it belongs to.
type Carrier interface{ Attempt() *Attempt }

// Queue keeps a statement until the COMMIT.
func (a *Attempt) Queue(s Statement) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return ErrEnded
	}
	a.queued = append(a.queued, s)
	return nil
}

// Publish keeps outbox rows until the COMMIT.
func (a *Attempt) Publish(rows ...Row) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return ErrEnded
	}
	a.rows = append(a.rows, rows...)
	return nil
}

// Mark remembers what is kept so far.
func (a *Attempt) Mark() Mark {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Mark{len(a.queued), len(a.rows)}
}

// Reset drops what was kept after m: its savepoint was rolled back.
func (a *Attempt) Reset(m Mark) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return
	}
	a.queued = a.queued[:min(m.queued, len(a.queued))]
	a.rows = a.rows[:min(m.rows, len(a.rows))]
}

// End closes the attempt to its handler and gives what it kept, in the order in which it came.
func (a *Attempt) End() (queued []Statement, rows []Row) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return nil, nil
	}
	a.ended = true
	return a.queued, a.rows
}

// Ended tells whether End has been called.
func (a *Attempt) Ended() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended
}

// Hand remembers the *sql.Tx that the handler was given.
func (a *Attempt) Hand(tx *sql.Tx) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handed = tx
}

// Handed tells whether tx is the one that the handler was given.
func (a *Attempt) Handed(tx *sql.Tx) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return tx != nil && a.handed == tx
}
