package middleware

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watermill-once/watermill-once/internal/attempt"
)

// rollbackTimeout bounds a ROLLBACK, which the message's context, often the reason for it, must not cut short.
const rollbackTimeout = 5 * time.Second

// READ COMMITTED by name, since a role's default may differ: in REPEATABLE READ a claim that meets a rival's raises
// 40001 instead of waiting for it.
var beginOptions = pgx.TxOptions{BeginQuery: "begin isolation level read committed"}

// pgxSession is a session on a connection of pgx, whether it comes from a pgx pool or from under database/sql.
type pgxSession struct {
	conn   *pgx.Conn
	tx     pgx.Tx
	shim   *sqlShim // nil on a pgx pool
	hungUp bool
}

func (s *pgxSession) begin(ctx context.Context, statements []attempt.Statement) ([]int64, error) {
	batch := pgx.Batch{QueuedQueries: make([]*pgx.QueuedQuery, 0, 1+len(statements))}
	batch.BeginTx(beginOptions)
	for _, statement := range statements {
		batch.Queue(statement.SQL, statement.Args...)
	}
	results := s.conn.SendBatch(ctx, &batch)
	s.tx = results.Tx()

	affected := make([]int64, 0, len(batch.QueuedQueries))
	for range batch.QueuedQueries {
		tag, err := results.Exec()
		if err != nil {
			_ = results.Close() // repeats err
			return nil, err
		}
		affected = append(affected, tag.RowsAffected())
	}
	if err := results.Close(); err != nil {
		return nil, err
	}
	return affected[1:], nil
}

func (s *pgxSession) handler(a *attempt.Attempt) handlerTx {
	if s.shim != nil {
		s.shim.attempt = a
		return handlerTx{sql: s.shim}
	}
	return handlerTx{pgx: &pgxTx{Tx: s.tx, attempt: a}}
}

// hangUp closes the socket only: the rest of the connection belongs to the call that is under way, which is likely to end now.
func (s *pgxSession) hangUp(a *attempt.Attempt) {
	_ = s.conn.PgConn().Conn().Close()
	s.hungUp = !a.Left(time.Second)
}

func (s *pgxSession) settle() error {
	if s.shim != nil {
		s.shim.end()
	}
	pg := s.conn.PgConn()
	switch {
	case s.conn.IsClosed():
		return errors.New("the connection was lost while the handler ran")
	case pg.IsBusy():
		_ = s.conn.Close(closedContext) // what is left to read may be endless
		return errors.New("the handler left a query open: close its rows before returning")
	}
	switch pg.TxStatus() {
	case 'T':
		return nil
	case 'E':
		return ErrTxAborted
	default:
		return ErrTxEnded
	}
}

// closedContext makes Close send nothing and wait for nothing.
var closedContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (s *pgxSession) inserts(rows []attempt.Row) []attempt.Statement { return attempt.Insert(rows) }

func (s *pgxSession) commit(ctx context.Context, statements []attempt.Statement) (done int, err error) {
	batch := pgx.Batch{QueuedQueries: make([]*pgx.QueuedQuery, 0, len(statements)+2)}
	for _, statement := range statements {
		batch.Queue(statement.SQL, statement.Args...)
	}
	batch.Queue(sameTransaction)
	batch.Queue("commit")
	results := s.conn.SendBatch(ctx, &batch)
	for range batch.QueuedQueries {
		if _, err := results.Exec(); err != nil {
			break // Close repeats it
		}
		done++
	}
	// Close decides: in the simple protocol a text of several statements has several results, so that counting them proves
	// nothing. Where all went well sameTransaction did, and the COMMIT behind it has committed.
	err = results.Close()
	var early pgx.ErrPreprocessingBatch
	switch {
	case err == nil:
		return len(statements), nil
	case errors.As(err, &early): // nothing has run; one text could not be prepared, or its arguments not encoded
		return max(0, slices.IndexFunc(statements, func(s attempt.Statement) bool { return s.SQL == early.SQL() })), err
	case !s.refused(err):
		return done, fmt.Errorf("%w: %w", ErrCommitUnknown, err)
	case done == len(statements) && sqlState(err) == divisionByZero:
		return done, ErrTxEnded
	default:
		return done, err
	}
}

// refused tells whether err, met in the COMMIT batch, is known to have left the transaction uncommitted. The batch runs
// up to its first error, and COMMIT stands last in it.
func (s *pgxSession) refused(err error) bool {
	var pgErr *pgconn.PgError
	switch {
	case pgconn.SafeToRetry(err):
		return true // before COMMIT was sent
	case errors.As(err, &pgErr):
		// FATAL ends the session at any point, also between COMMIT's commit record and its answer.
		return pgErr.SeverityUnlocalized == "ERROR"
	default:
		return !s.conn.IsClosed() && s.conn.PgConn().TxStatus() != 'I'
	}
}

func (s *pgxSession) ended(ctx context.Context) bool {
	if s.hungUp || s.conn.IsClosed() {
		return false
	}
	if s.shim != nil {
		s.shim.end()
	}
	pg := s.conn.PgConn()
	if pg.IsBusy() || pg.TxStatus() != 'T' {
		return pg.TxStatus() == 'I' // in an aborted one nothing can be asked
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_, err := pg.Exec(ctx, sameTransaction).ReadAll()
	return sqlState(err) == divisionByZero
}

func (s *pgxSession) rollback(ctx context.Context) {
	if s.hungUp {
		return
	}
	if s.shim != nil {
		s.shim.end()
	}
	pg := s.conn.PgConn()
	switch {
	case s.conn.IsClosed():
		return
	case pg.IsBusy():
		_ = s.conn.Close(closedContext) // a query that the handler left open; the server rolls back
		return
	case pg.TxStatus() == 'I':
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if _, err := pg.Exec(ctx, "rollback").ReadAll(); err != nil {
		_ = s.conn.Close(closedContext)
	}
}

func (s *pgxSession) broken() bool { return s.hungUp || s.conn.IsClosed() }

func (s *pgxSession) script(ctx context.Context, sql string) error {
	_, err := s.conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}
