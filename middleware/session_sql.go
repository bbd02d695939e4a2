package middleware

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/watermill-once/watermill-once/internal/attempt"
)

// sqlSession is a session on a connection of a driver other than pgx: one statement at a time.
type sqlSession struct {
	own  *sqlShim // for our statements
	shim *sqlShim // for the handler's
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
	result, err := s.own.open().ExecContext(ctx, text, args...)
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

// hangUp cannot reach the socket. What runs is waited for, as database/sql does.
func (s *sqlSession) hangUp(*attempt.Attempt) {}

func (s *sqlSession) settle() error {
	s.shim.end()
	return nil
}

func (s *sqlSession) inserts(rows []attempt.Row) []attempt.Statement { return attempt.Insert(rows) }

func (s *sqlSession) commit(ctx context.Context, statements []attempt.Statement) (done int, err error) {
	for _, statement := range statements {
		if _, err := s.exec(ctx, statement.SQL, statement.Args...); err != nil {
			return done, aborted(err)
		}
		done++
	}
	if _, err := s.exec(ctx, sameTransaction); err != nil {
		if sqlState(err) == divisionByZero {
			return done, ErrTxEnded
		}
		return done, aborted(err)
	}
	if _, err = s.exec(ctx, "commit"); err == nil {
		s.open = false
		return done, nil
	}
	if state := sqlState(err); state == "" || endsSession(state) {
		s.gone = true
		return done, fmt.Errorf("%w: %w", ErrCommitUnknown, err)
	}
	s.open = false
	return done, err
}

// aborted recognizes the error of a statement in a transaction that has failed before: the handler has swallowed that.
func aborted(err error) error {
	if sqlState(err) == "25P02" { // in_failed_sql_transaction
		return ErrTxAborted
	}
	return err
}

// endsSession tells whether a SQLSTATE may come with the end of the session, at whatever point of a COMMIT. Without pgx
// the severity is not to be had.
func endsSession(state string) bool {
	for _, class := range []string{"08", "53", "57", "58", "XX"} {
		if strings.HasPrefix(state, class) {
			return true
		}
	}
	return false
}

func (s *sqlSession) ended(ctx context.Context) bool {
	s.shim.end()
	if s.broken() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_, err := s.exec(ctx, sameTransaction)
	return sqlState(err) == divisionByZero
}

func (s *sqlSession) rollback(ctx context.Context) {
	s.shim.end()
	if !s.open || s.broken() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	// A driver may be wrapped, and not say that the connection is gone. A ROLLBACK that fails says it.
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
