package middleware

import (
	"context"
	"errors"
	"fmt"
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
	conn *pgx.Conn
	tx   pgx.Tx
	view *pgxTx
	shim *sqlShim // nil on a pgx pool
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
	s.view = &pgxTx{Tx: s.tx, attempt: a}
	return handlerTx{pgx: s.view}
}

func (s *pgxSession) settle(context.Context) error {
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
	case s.view != nil && s.view.committed.Load():
		return ErrTxEnded
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

func (s *pgxSession) commit(ctx context.Context, statements []attempt.Statement) (done int, err error) {
	batch := pgx.Batch{QueuedQueries: make([]*pgx.QueuedQuery, 0, len(statements)+1)}
	for _, statement := range statements {
		batch.Queue(statement.SQL, statement.Args...)
	}
	batch.Queue("commit")
	results := s.conn.SendBatch(ctx, &batch)

	var tag pgconn.CommandTag
	for range batch.QueuedQueries {
		if tag, err = results.Exec(); err != nil {
			break
		}
		done++
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	switch {
	case err != nil && s.refused(err):
		return done, err
	case err != nil:
		return done, fmt.Errorf("%w: %w", ErrCommitUnknown, err)
	case tag.String() != "COMMIT": // PostgreSQL answers ROLLBACK to the COMMIT of an aborted transaction
		return done - 1, ErrTxAborted
	default:
		return done - 1, nil
	}
}

// refused tells whether err, met in the COMMIT batch, is known to have left the transaction uncommitted. The batch runs
// up to its first error, and COMMIT stands last in it.
func (s *pgxSession) refused(err error) bool {
	var (
		pgErr *pgconn.PgError
		early pgx.ErrPreprocessingBatch // an argument that cannot be encoded, a statement that cannot be prepared
	)
	switch {
	case errors.As(err, &pgErr):
		// FATAL ends the session at any point, also between COMMIT's commit record and its answer.
		return pgErr.SeverityUnlocalized == "ERROR"
	case errors.As(err, &early), pgconn.SafeToRetry(err):
		return true
	default:
		return !s.conn.IsClosed() && s.conn.PgConn().TxStatus() != 'I'
	}
}

func (s *pgxSession) rollback(ctx context.Context) {
	if s.shim != nil {
		s.shim.end()
	}
	if s.conn.IsClosed() || s.conn.PgConn().TxStatus() == 'I' && !s.conn.PgConn().IsBusy() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if s.conn.PgConn().IsBusy() {
		_ = s.conn.Close(closedContext) // a query that the handler left open; the server rolls back
		return
	}
	if _, err := s.conn.Exec(ctx, "rollback"); err != nil {
		_ = s.conn.Close(closedContext)
	}
}

func (s *pgxSession) broken() bool { return s.conn.IsClosed() }

func (s *pgxSession) script(ctx context.Context, sql string) error {
	_, err := s.conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}
