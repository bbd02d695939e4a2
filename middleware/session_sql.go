package middleware

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/watermill-once/watermill-once/internal/attempt"
)

// sqlSession is a session on a connection of a driver other than pgx: one statement at a time.
type sqlSession struct {
	shim *sqlShim
	open bool
	gone bool
}

func (s *sqlSession) begin(ctx context.Context, statements []attempt.Statement) ([]int64, error) {
	s.open = true // from here on: a failed BEGIN may have begun
	if _, err := s.exec(ctx, beginOptions.BeginQuery); err != nil {
		return nil, err
	}
	affected := make([]int64, 0, len(statements))
	for _, statement := range statements {
		rows, err := s.exec(ctx, statement.SQL, statement.Args...)
		if err != nil {
			return nil, err
		}
		affected = append(affected, rows)
	}
	return affected, nil
}

func (s *sqlSession) exec(ctx context.Context, text string, args ...any) (int64, error) {
	result, err := s.shim.open().ExecContext(ctx, text, args...)
	if err != nil {
		s.gone = s.gone || errors.Is(err, driver.ErrBadConn)
		return 0, err
	}
	return result.RowsAffected()
}

func (s *sqlSession) handler(a *attempt.Attempt) handlerTx {
	s.shim.attempt = a
	return handlerTx{sql: s.shim}
}

// settle asks by declaring a cursor, which PostgreSQL refuses in an aborted transaction and outside of one, with a SQLSTATE
// for each. (So it does with a savepoint, but that would cost a transaction id more.)
func (s *sqlSession) settle(ctx context.Context) error {
	s.shim.end()
	_, err := s.exec(ctx, "declare watermill_once cursor for select 1")
	switch sqlState(err) {
	case "25P02": // in_failed_sql_transaction
		return ErrTxAborted
	case "25P01": // no_active_sql_transaction
		s.open = false
		return ErrTxEnded
	default:
		return err
	}
}

func (s *sqlSession) commit(ctx context.Context, statements []attempt.Statement) (done int, err error) {
	for _, statement := range statements {
		if _, err := s.exec(ctx, statement.SQL, statement.Args...); err != nil {
			return done, err // COMMIT has not been sent
		}
		done++
	}
	if _, err = s.exec(ctx, "commit"); err == nil {
		s.open = false
		return done, nil
	}
	if state := sqlState(err); state == "" || outageEndsSession(state) {
		s.gone = true
		return done, fmt.Errorf("%w: %w", ErrCommitUnknown, err)
	}
	s.open = false
	return done, err
}

// outageEndsSession tells whether a SQLSTATE comes with the end of the session, at whatever point of a COMMIT. Without
// pgx the severity is not to be had.
func outageEndsSession(state string) bool {
	switch state[:2] {
	case "08", "57", "58", "XX", "53":
		return true
	}
	return false
}

func (s *sqlSession) rollback(ctx context.Context) {
	s.shim.end()
	if !s.open || s.broken() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if _, err := s.exec(ctx, "rollback"); err != nil {
		s.gone = true
	}
	s.open = false
}

// broken asks the driver too: what has failed may have been a statement of the handler's.
func (s *sqlSession) broken() bool {
	if validator, ok := s.shim.inner.(driver.Validator); ok && !validator.IsValid() {
		s.gone = true
	}
	return s.gone
}

func (s *sqlSession) script(ctx context.Context, text string) error {
	_, err := s.exec(ctx, text)
	return err
}
