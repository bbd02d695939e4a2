package middleware

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync"

	"github.com/watermill-once/watermill-once/internal/attempt"
)

// sqlShim makes *sql.Tx values for a connection that already is in a transaction. A *sql.Tx is a concrete type: it sends
// a BEGIN of its own, and nothing about it can be overridden. So there is a driver between it and the connection, on which
// BEGIN does nothing and COMMIT and ROLLBACK are refused.
type sqlShim struct {
	inner   driver.Conn
	attempt *attempt.Attempt // nil: for statements of our own

	mu    sync.Mutex
	db    *sql.DB // opened on first use: a handler that only queues needs none
	tx    *sql.Tx
	spent bool // database/sql has marked tx done: the handler called Commit or Rollback on it
	ended bool
}

// open gives a *sql.DB that has the one connection.
func (s *sqlShim) open() *sql.DB {
	if s.db == nil {
		s.db = sql.OpenDB(s)
	}
	return s.db
}

// Tx gives the handler's transaction: the same one at each call, or a fresh one where the last is spent.
func (s *sqlShim) Tx(ctx context.Context) (*sql.Tx, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return s.tx, s.tx != nil
	}
	if s.tx == nil || s.spent {
		// Without the context's end, upon which database/sql would mark the *sql.Tx done by itself.
		tx, err := s.open().BeginTx(context.WithoutCancel(ctx), nil)
		if err != nil {
			return nil, false
		}
		s.tx, s.spent = tx, false
		s.attempt.Hand(tx)
	}
	return s.tx, true
}

// end closes what the handler may have left open on its *sql.Tx, rows and statements, and refuses it from now on.
func (s *sqlShim) end() {
	s.mu.Lock()
	tx := s.tx
	s.ended = true
	s.mu.Unlock()
	if tx != nil {
		_ = tx.Rollback() // refused by sqlShimTx: it reaches database/sql, not the server
	}
}

func (s *sqlShim) close() {
	s.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db != nil {
		_ = s.db.Close()
	}
}

// Connect and Driver make the shim a driver.Connector.
func (s *sqlShim) Connect(context.Context) (driver.Conn, error) { return sqlShimConn{s}, nil }
func (s *sqlShim) Driver() driver.Driver                        { return sqlShimDriver{} }

type sqlShimDriver struct{}

func (sqlShimDriver) Open(string) (driver.Conn, error) { return nil, driver.ErrBadConn }

// sqlShimConn passes everything on to the driver's connection but the transaction's beginning and its own closing.
type sqlShimConn struct{ shim *sqlShim }

func (c sqlShimConn) Close() error                              { return nil }
func (c sqlShimConn) Begin() (driver.Tx, error)                 { return sqlShimTx(c), nil }
func (c sqlShimConn) Prepare(query string) (driver.Stmt, error) { return c.shim.inner.Prepare(query) }

func (c sqlShimConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return sqlShimTx(c), nil
}

// enter begins a call on the connection, for the function that comes back to end.
func (c sqlShimConn) enter() (leave func(), err error) {
	switch {
	case c.shim.attempt == nil:
		return func() {}, nil
	case c.shim.attempt.Enter():
		return c.shim.attempt.Leave, nil
	default:
		return nil, sql.ErrTxDone
	}
}

func (c sqlShimConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	leave, err := c.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	if inner, ok := c.shim.inner.(driver.ConnPrepareContext); ok {
		return inner.PrepareContext(ctx, query)
	}
	return c.shim.inner.Prepare(query)
}

func (c sqlShimConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	leave, err := c.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	if inner, ok := c.shim.inner.(driver.ExecerContext); ok {
		return inner.ExecContext(ctx, query, args)
	}
	return nil, driver.ErrSkip // database/sql prepares instead
}

func (c sqlShimConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	leave, err := c.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	if inner, ok := c.shim.inner.(driver.QueryerContext); ok {
		return inner.QueryContext(ctx, query, args)
	}
	return nil, driver.ErrSkip
}

func (c sqlShimConn) CheckNamedValue(value *driver.NamedValue) error {
	if inner, ok := c.shim.inner.(driver.NamedValueChecker); ok {
		return inner.CheckNamedValue(value)
	}
	return driver.ErrSkip // database/sql converts by its defaults
}

type sqlShimTx struct{ shim *sqlShim }

func (t sqlShimTx) Commit() error   { return t.refuse() }
func (t sqlShimTx) Rollback() error { return t.refuse() }

func (t sqlShimTx) refuse() error {
	t.shim.mu.Lock()
	defer t.shim.mu.Unlock()
	t.shim.spent = true
	return ErrTxManaged
}
