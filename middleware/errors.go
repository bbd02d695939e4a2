package middleware

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net"
	"slices"
	"strings"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/journal"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

var (
	// ErrTxAborted: the handler returned nil, but one of its statements had failed and PostgreSQL will not commit
	// the transaction. Everything was rolled back. The handler lost an error somewhere.
	ErrTxAborted = errors.New("the transaction is aborted: the handler returned nil after a failed statement")

	// ErrTxEnded: the handler ended the transaction itself, by COMMIT or ROLLBACK in raw SQL. What it did before may be
	// committed together with the claim; so may what it did in a transaction that it began itself. The messages it
	// produced are lost. Permanent, for the poison queue: a person has to look at it.
	ErrTxEnded = errors.New("the handler ended the transaction itself")

	// ErrTxManaged is returned by Commit and Rollback on the handler's transaction, which goes on: it commits when
	// the handler returns nil and is rolled back when it returns an error.
	ErrTxManaged = errors.New("the transaction is committed or rolled back by the middleware")

	// ErrCommitUnknown: the connection was lost after COMMIT may have been sent and before its answer came. The event is
	// either applied or not; the redelivery finds out by its claim.
	ErrCommitUnknown = errors.New("the outcome of the COMMIT is unknown")

	// ErrTooOld: the message is older than Config.MaxAge, and neither a known duplicate nor stale. It may have been handled before its
	// claim was swept. Nothing was written. Permanent, for the poison queue.
	ErrTooOld = errors.New("the message is older than MaxAge")

	// ErrInvalidTime: Config.Time finds no time, or none that makes sense. Permanent, for the poison queue.
	ErrInvalidTime = errors.New("the message's time is missing or malformed")

	// ErrNoOutbox: the handler produced messages, and Config.Outbox is nil. Permanent, but no fault of the message:
	// ShouldPoison is false for it.
	ErrNoOutbox = errors.New("the handler produced messages, and no outbox is configured")

	// ErrNoTopic: the handler returned messages, and its handler in the Router has no topic to publish to.
	ErrNoTopic = errors.New("the handler returned messages, and has no topic to publish them to")

	// ErrNoConsumer: Config.Consumer is empty and the message did not come through a Router, which names its handlers.
	ErrNoConsumer = errors.New("no consumer: set Config.Consumer or run in a Router")
)

// Permanent marks an error as one that a retry will not mend. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent tells outbox.Relay, which parks the messages of a broker that says so.
func (e *permanentError) Permanent() bool { return true }

// IsPermanent tells whether handling the message again would fail again: what Permanent has marked, a bad event id, position
// or time, one that is too old, a call whose outcome is final (dedupe.FinalError), unknown (dedupe.ErrUnknown) or another request's, a
// produced message that no outbox could hold, and the faults of code and configuration among this package's errors.
func IsPermanent(err error) bool {
	if marked(err) {
		return true
	}
	for _, permanent := range []error{
		dedupe.ErrInvalidKey, dedupe.ErrFingerprintMismatch, dedupe.ErrUnknown, dedupe.ErrInTransaction,
		ordering.ErrInvalidPosition, outbox.ErrInvalidMessage, outbox.ErrNoTransaction,
		ErrTooOld, ErrInvalidTime, ErrTxEnded, ErrTxManaged, ErrNoOutbox, ErrNoTopic, ErrNoConsumer,
	} {
		if errors.Is(err, permanent) {
			return true
		}
	}
	return false
}

// ShouldRetry is made for the ShouldRetry field of Watermill's Retry: it ends the retries of a permanent error.
func ShouldRetry(params wmiddleware.RetryParams) bool { return !IsPermanent(params.Err) }

// ShouldPoison is made for Watermill's PoisonQueueWithFilter: it tells whether the message is to blame for err. It is
// false for all that failed before the handler ran (but for a bad event id, position or time, and ErrTooOld), for ended contexts, lost
// connections, an unknown COMMIT, a call that is in flight elsewhere or has lost its lease or its outcome, faults of configuration, and
// for the SQLSTATEs of a server that is down, full, read-only, contended or refuses the login, or that knows no such table: an outage
// or a bad deploy must not empty the topic into the poison queue. An error that is none of these goes there, so give Retry a place
// inside, and mark by Permanent what it need not try.
func ShouldPoison(err error) bool {
	var ours *blamelessError
	if err == nil || errors.As(err, &ours) || isAny(err, neverPoison) {
		return false
	}
	if marked(err) {
		return true
	}
	var (
		journaling *journal.Trouble
		connecting *pgconn.ConnectError
		network    *net.OpError
	)
	return !isAny(err, passing) && !errors.As(err, &journaling) && !errors.As(err, &connecting) && !errors.As(err, &network) &&
		!outage(err)
}

var (
	// neverPoison are faults of code and configuration, which every message meets, and the COMMIT that nobody knows of.
	neverPoison = []error{
		ErrNoOutbox, ErrNoTopic, ErrNoConsumer, ErrTxManaged, outbox.ErrNoTransaction, dedupe.ErrInTransaction, ErrCommitUnknown,
	}
	// passing are errors of the moment, unless they are marked as Permanent.
	passing = []error{
		context.Canceled, context.DeadlineExceeded, driver.ErrBadConn, sql.ErrConnDone, net.ErrClosed,
		dedupe.ErrInFlight, dedupe.ErrLeaseLost, dedupe.ErrOutcomeLost,
	}
)

// marked: by Permanent, or an outcome by dedupe.Final.
func marked(err error) bool {
	var (
		permanent *permanentError
		final     *dedupe.FinalError
	)
	return errors.As(err, &permanent) || errors.As(err, &final)
}

func isAny(err error, targets []error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// blamelessError marks what the message cannot be blamed for, where the error alone does not show it: "unexpected EOF"
// is a lost connection as well as a payload cut short.
type blamelessError struct{ err error }

func (e *blamelessError) Error() string { return e.err.Error() }
func (e *blamelessError) Unwrap() error { return e.err }

func blameless(err error) error {
	if err == nil {
		return nil
	}
	return &blamelessError{err}
}

// outage tells whether a database error speaks of the server, the session or a rival and not of the statement.
func outage(err error) bool {
	state := sqlState(err)
	switch state {
	case "08P01": // protocol_violation: PgBouncer's word for most of its troubles; of a statement: a NUL in an argument
		var pgErr *pgconn.PgError
		return !errors.As(err, &pgErr) || pgErr.SeverityUnlocalized != "ERROR"
	case "25006", // read_only_sql_transaction: a standby, after a failover
		"25P03", "25P04", // a transaction's timeouts
		"26000", "42P05", // a prepared statement lost, or there twice: PgBouncer with an exec mode that does not fit
		"3D000", // invalid_catalog_name: the database is not there
		"55P03": // lock_not_available: lock_timeout
		return true
	}
	for _, class := range []string{
		"08",  // connection
		"28",  // login
		"40",  // serialization, deadlock
		"42",  // a table, column or right that is not there, or bad SQL: a migration or a deploy gone wrong
		"53",  // out of resources
		"57P", // shutdown, crash, still starting
		"58",  // system error
	} {
		if strings.HasPrefix(state, class) {
			return true
		}
	}
	return false
}

// conflict tells whether an attempt can win when it is run again: it lost to a concurrent one, or it met a prepared
// statement that another session's DDL has made useless (0A000, "cached plan must not change result type"), which drivers
// prepare anew.
func conflict(err error) bool {
	switch sqlState(err) {
	case "40001", "40P01", "0A000", "26000":
		return true
	}
	return false
}

// mismatch tells whether a claim failed because its id has another fingerprint: by a null in its event_id. A user's trigger may
// fail with a null of its own.
func mismatch(err error) bool {
	const notNullViolation = "23502"
	if sqlState(err) != notNullViolation {
		return false
	}
	v, told := violated(err)
	return !told || v.column == "event_id"
}

// violation is what an error says that it is about.
type violation struct{ column, constraint string }

// violated finds it in the errors of drivers that tell.
func violated(err error) (v violation, told bool) {
	var (
		pgErr *pgconn.PgError
		other interface{ Get(field byte) string } // lib/pq's
	)
	switch {
	case errors.As(err, &pgErr):
		return violation{pgErr.ColumnName, pgErr.ConstraintName}, true
	case errors.As(err, &other):
		return violation{other.Get('c'), other.Get('n')}, true
	default:
		return v, false
	}
}

// sqlState finds the SQLSTATE in an error of any driver; "": none.
func sqlState(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

// integrity tells whether err speaks of the data: a bad value, a violated constraint.
func integrity(err error) bool {
	state := sqlState(err)
	return strings.HasPrefix(state, "22") || strings.HasPrefix(state, "23")
}

// offsetTaken tells whether an outbox refused a row for its offset, which no message chooses: its sequence is behind the table, as
// after a restore of data only.
func offsetTaken(err error) bool {
	v, _ := violated(err)
	return sqlState(err) == "23505" && strings.HasSuffix(v.constraint, "_pkey")
}

// refusesRow tells whether PostgreSQL may refuse a message and take others: by its values, a trigger, or a policy. A column that wants a
// value, a missing partition, and a sequence at its end or behind the table refuse all.
func refusesRow(err error) bool {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) {
		return false
	}
	if answer.Routine == "exec_stmt_raise" { // by a trigger, under whatever code it likes
		return true
	}
	switch answer.Code {
	case "23502", "2200H":
		return false
	case "23505":
		return !offsetTaken(err)
	case "23514":
		return answer.ConstraintName != ""
	case "42501":
		return answer.Routine == "ExecWithCheckOptions" // row security: all else is a missing right
	}
	return integrity(err) || strings.HasPrefix(answer.Code, "P0")
}
