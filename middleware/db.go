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

// SQL runs handlers in transactions of database/sql, for what is written for it (sqlc, gorm, bun) and for any
// PostgreSQL driver: the handler finds its transaction by SQLTx. Over pgx's stdlib it makes as few round trips as Pgx;
// over other drivers each of our statements is a trip of its own, and one more before COMMIT looks at the transaction's
// state. A driver that does not heed contexts (lib/pq, while it reads) waits for a dead network as long as TCP does.
//
// Statements prepared on db itself cannot be used in the handler's transaction, which belongs to another *sql.DB: prepare them
// on the *sql.Tx, and leave sqlc's emit_prepared_queries off.
func SQL(db *sql.DB) DB { return sqlDB{db} }

func validateDB(db DB) error {
	if db == nil {
		return errors.New("db is nil")
	}
	return db.validate()
}

// session is one connection while an attempt has it. Its methods are called in the order in which they stand, by one
// goroutine.
type session interface {
	// begin begins a READ COMMITTED transaction, runs the statements and gives the number of rows that each has
	// affected: one round trip, where the driver can.
	begin(ctx context.Context, statements []attempt.Statement) ([]int64, error)

	// handler gives the handler its view of the transaction.
	handler(a *attempt.Attempt) handlerTx

	// hangUp cuts the line under a call that the handler left running, and has the connection dropped.
	hangUp(a *attempt.Attempt)

	// settle closes the handler's view, and returns ErrTxAborted or ErrTxEnded where it is plain that nothing can be
	// committed.
	settle() error

	// inserts gives the statements for outbox rows, as they suit commit.
	inserts(rows []attempt.Row) []attempt.Statement

	// commit runs the statements, sameTransaction and COMMIT: one round trip, where the driver can. done is the number
	// of statements that succeeded. The error is ErrCommitUnknown where the transaction may be committed all the same,
	// and ErrTxEnded where it was not the one that begin began; after any other, it is rolled back.
	commit(ctx context.Context, statements []attempt.Statement) (done int, err error)

	// ended tells whether the handler, which has failed, had ended the transaction that begin began.
	ended(ctx context.Context) bool

	// rollback ends a transaction that is still open. Where it cannot, it closes the connection.
	rollback(ctx context.Context)

	// broken tells whether the connection is gone.
	broken() bool

	// script runs several statements that take no arguments.
	script(ctx context.Context, sql string) error
}

// The transaction carries a mark, which is gone when the handler has ended it by raw SQL, also where it has begun another
// one: a setting local to a transaction goes with it. What follows would commit without the claim.
const (
	mark = `set_config('watermill_once.attempt', 'open', true)`

	// sameTransaction fails with division_by_zero in any other transaction than the marked one.
	sameTransaction = `select 1 / (coalesce(current_setting('watermill_once.attempt', true), '') = 'open')::int`
	divisionByZero  = "22012"
)

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
	s := &pgxSession{conn: conn.Conn()}
	defer func() {
		if s.hungUp {
			conn.Hijack() // and leave it to whom it was left to
		} else {
			conn.Release() // which destroys a connection that is not idle
		}
	}()
	return f(s)
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
		var s session
		if pgxConn, ok := unwrapStdlib(inner); ok {
			s = &pgxSession{conn: pgxConn.Conn(), shim: shim}
		} else {
			own := &sqlShim{inner: inner}
			defer own.close()
			s = &sqlSession{own: own, shim: shim}
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
