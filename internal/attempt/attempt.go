// Package attempt is what the packages share about one run of a handler: the transaction it runs in, found on the
// message's context, and what waits in the process to be written together with its COMMIT.
package attempt

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"
)

// Statement is one SQL statement and its arguments.
type Statement struct {
	SQL  string
	Args []any
}

// ErrEnded is returned by everything that is asked of an attempt after its transaction has ended.
var ErrEnded = errors.New("the transaction has ended")

// Attempt is one run of a handler inside one transaction, or before one. Its methods may be called from several goroutines.
type Attempt struct {
	// Headers are the metadata that what this attempt produces inherits: correlation id and trace.
	Headers map[string]string

	// Outside: the handler runs in no transaction. What it publishes is written in one that follows.
	Outside bool

	mu     sync.Mutex
	ended  bool
	queued []Statement
	rows   []Row
	handed *sql.Tx
	calls  int           // under way on the transaction
	left   chan struct{} // closed when the last call leaves an ended attempt; nil unless somebody waits
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

// Enter begins a call on the transaction, which Leave ends. False: the attempt has ended, and its connection may serve
// somebody else.
func (a *Attempt) Enter() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return false
	}
	a.calls++
	return true
}

// Leave ends a call that Enter has begun.
func (a *Attempt) Leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls--; a.calls == 0 && a.left != nil {
		close(a.left)
		a.left = nil
	}
}

// End closes the attempt to its handler and gives what it kept, in the order in which it came. running: a call is still under
// way, on a goroutine that the handler left behind.
func (a *Attempt) End() (queued []Statement, rows []Row, running bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return nil, nil, a.calls > 0
	}
	a.ended = true
	return a.queued, a.rows, a.calls > 0
}

// Left waits until no call is under way on an ended attempt, for as long as patience lasts.
func (a *Attempt) Left(patience time.Duration) bool {
	a.mu.Lock()
	if a.calls == 0 {
		a.mu.Unlock()
		return true
	}
	if a.left == nil {
		a.left = make(chan struct{})
	}
	left := a.left
	a.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-left:
		return true
	case <-timer.C:
		return false
	}
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
