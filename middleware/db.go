package middleware

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/watermill-once/watermill-once/internal/attempt"
)

// DB is a database in whose transactions handlers run. Pgx and SQL make one.
type DB interface {
	// use runs f on a session of its own and gives the connection back when f has returned or panicked. An error of
	// use itself, with no connection to be had, comes without a call of f.
	use(ctx context.Context, f func(session) error) error
	validate() error
}

// Pgx runs handlers in transactions of a pgx pool. This is the fast path: the handler finds its transaction by PgxTx.
// The pool needs a connection for each handler that runs at the same time.
func Pgx(pool *pgxpool.Pool) DB { return pgxDB{pool} }

// SQL runs handlers in transactions of database/sql, for what is written for it (sqlc, gorm, ent, bun) and for any
// PostgreSQL driver: the handler finds its transaction by SQLTx. Over pgx's stdlib it makes as few round trips as Pgx;
// over other drivers each of our statements is a trip of its own, and one more before COMMIT looks at the transaction's
// state.
func SQL(db *sql.DB) DB { return sqlDB{db} }

// session is one connection while an attempt has it. Its methods are called in the order in which they stand, by one
// goroutine.
type session interface {
	// begin begins a READ COMMITTED transaction, runs the statements and gives the number of rows that each has
	// affected: one round trip, where the driver can.
	begin(ctx context.Context, statements []attempt.Statement) ([]int64, error)

	// handler gives the handler its view of the transaction.
	handler(a *attempt.Attempt) handlerTx

	// settle closes the handler's view, and returns ErrTxAborted or ErrTxEnded where nothing can be committed.
	settle(ctx context.Context) error

	// commit runs the statements and COMMIT: one round trip, where the driver can. done is the number of statements
	// that succeeded. The error is ErrCommitUnknown where the transaction may be committed all the same; after any
	// other, it is not.
	commit(ctx context.Context, statements []attempt.Statement) (done int, err error)

	// rollback ends a transaction that is still open. Where it cannot, it closes the connection.
	rollback(ctx context.Context)

	// broken tells whether the connection is gone.
	broken() bool

	// script runs several statements that take no arguments.
	script(ctx context.Context, sql string) error
}

// handlerTx is a transaction as the handler sees it. Exactly one of the two is there.
type handlerTx struct {
	pgx *pgxTx
	sql *sqlShim
}

type pgxDB struct{ pool *pgxpool.Pool }

func (db pgxDB) validate() error {
	if db.pool == nil {
		return errors.New("Pgx: pool is nil")
	}
	return nil
}

func (db pgxDB) use(ctx context.Context, f func(session) error) error {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return blameless(fmt.Errorf("middleware: acquire a connection: %w", err))
	}
	// Release destroys a connection that is not idle.
	defer conn.Release()
	return f(&pgxSession{conn: conn.Conn()})
}

type sqlDB struct{ db *sql.DB }

func (db sqlDB) validate() error {
	if db.db == nil {
		return errors.New("SQL: db is nil")
	}
	return nil
}

func (db sqlDB) use(ctx context.Context, f func(session) error) error {
	conn, err := db.db.Conn(ctx)
	if err != nil {
		return blameless(fmt.Errorf("middleware: acquire a connection: %w", err))
	}
	defer conn.Close()

	var (
		called bool
		result error
	)
	err = conn.Raw(func(driverConn any) error {
		called = true
		inner, ok := driverConn.(driver.Conn)
		if !ok {
			result = errors.New("middleware: the driver's connection is no driver.Conn")
			return nil
		}
		shim := &sqlShim{inner: inner}
		defer shim.close()
		var s session = &sqlSession{shim: shim}
		if pgxConn, ok := unwrapStdlib(inner); ok {
			s = &pgxSession{conn: pgxConn.Conn(), shim: shim}
		}
		result = f(s)
		if s.broken() {
			return driver.ErrBadConn // for database/sql to drop the connection; result tells what happened
		}
		return nil
	})
	if !called {
		return blameless(fmt.Errorf("middleware: acquire a connection: %w", err))
	}
	return result
}

// unwrapStdlib finds pgx under a driver, also where a tracing driver is wrapped around it.
func unwrapStdlib(conn driver.Conn) (*stdlib.Conn, bool) {
	for {
		switch c := conn.(type) {
		case *stdlib.Conn:
			return c, true
		case interface{ Raw() driver.Conn }:
			conn = c.Raw()
		default:
			return nil, false
		}
	}
}
