package journal

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The states of a row. One that is started and whose lease is over is unknown too.
const (
	Started = "started"
	Unknown = "unknown"
	Free    = "free"
	Done    = "done"
	Failed  = "failed"
)

// owner is somebody who has claimed a row, or tries to.
type owner struct {
	ID
	token int64
}

// newToken is drawn and not counted: it stays unique where a row was deleted and made anew, and it tells an owner whose claim was
// committed on a connection that broke that the row is its own.
func newToken() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return int64(binary.BigEndian.Uint64(b[:]))
}

// entry is a row as a claim finds it.
type entry struct {
	token       int64
	state       string
	over        bool // the lease, by the database's clock
	fingerprint []byte
	outcome     []byte
	lastError   string
	sent        time.Time // when the claim was sent: the lease began then or later
}

type statements struct{ insert, look, takeOver, renew, end, whose, resolve, list, count string }

// Casts and texts, so that every exec mode of pgx takes them.
const (
	insertSQL = `insert into @table (consumer, key, token, fingerprint, state, attempts, started_at, updated_at, lease_until)
values (
  $1::text, $2::text, $3::bigint, $4::bytea, 'started', 1, clock_timestamp(), clock_timestamp(),
  clock_timestamp() + $5::bigint * interval '1 microsecond'
)
on conflict (consumer, key) do nothing`

	lookSQL = `select token, state, coalesce(lease_until <= clock_timestamp(), true),
  fingerprint, outcome::text, coalesce(last_error, '')
from @table
where consumer = $1::text
  and key = $2::text`

	takeOverSQL = `update @table
set token = $3::bigint,
    fingerprint = coalesce(fingerprint, $4::bytea),
    state = 'started',
    attempts = attempts + 1,
    started_at = clock_timestamp(),
    lease_until = clock_timestamp() + $5::bigint * interval '1 microsecond',
    updated_at = clock_timestamp()
where consumer = $1::text
  and key = $2::text
  and token = $6::bigint
  and state = $7::text
  and (state in ('unknown', 'free') or state = 'started' and lease_until <= clock_timestamp())`
)

func statementsFor(table string) statements {
	in := func(sql string) string { return strings.Replace(sql, "@table", table, 1) }
	return statements{
		in(insertSQL), in(lookSQL), in(takeOverSQL), in(renewSQL), in(endSQL), in(whoseSQL), in(resolveSQL), in(listSQL), in(countSQL),
	}
}

// claim makes the row, or finds the one that is there: one round trip. Where it was made, the entry has the owner's token.
func (j *Journal) claim(ctx context.Context, o owner, fingerprint []byte) (found entry, err error) {
	err = j.claiming(ctx, o, Free, func(ctx context.Context, conn *pgxpool.Conn) error {
		found.sent = time.Now()
		var batch pgx.Batch // one transaction, implicitly
		batch.Queue(j.sql.insert, o.Consumer, o.Key, o.token, fingerprint, j.config.Lease.Microseconds())
		batch.Queue(j.sql.look, o.Consumer, o.Key).QueryRow(func(row pgx.Row) error {
			return row.Scan(&found.token, &found.state, &found.over, &found.fingerprint, &found.outcome, &found.lastError)
		})
		return conn.SendBatch(ctx, &batch).Close()
	})
	return found, err
}

// takeOver makes a row the owner's that is still as it was found. False: it is not. The lease began when it was sent, or later.
func (j *Journal) takeOver(ctx context.Context, o owner, found entry, fingerprint []byte) (sent time.Time, taken bool, err error) {
	err = j.claiming(ctx, o, found.back(), func(ctx context.Context, conn *pgxpool.Conn) error {
		sent = time.Now()
		tag, err := conn.Exec(ctx, j.sql.takeOver,
			o.Consumer, o.Key, o.token, fingerprint, j.config.Lease.Microseconds(), found.token, found.state)
		taken = err == nil && tag.RowsAffected() == 1
		return err
	})
	return sent, taken, err
}

// back is what the row is again where an owner that took it over called nothing.
func (e entry) back() string {
	if e.state == Free {
		return Free
	}
	return Unknown
}

// claimTries bounds how often a claim is tried that loses to a concurrent one, in an isolation level stricter than READ COMMITTED
// (a role's default may be one), or that finds a row which is deleted meanwhile.
const claimTries = 10

// claiming runs a statement that claims. One that failed may be committed all the same, its answer lost: it is taken back, as
// nothing was called yet. Where that fails too, the row turns unknown when the lease is over.
func (j *Journal) claiming(ctx context.Context, o owner, back string, f func(context.Context, *pgxpool.Conn) error) error {
	for tries := 1; ; tries++ {
		sent, err := j.use(ctx, func(conn *pgxpool.Conn) error {
			ctx, end := j.patient(ctx)
			defer end()
			return f(ctx, conn)
		})
		switch {
		case err == nil:
			return nil
		case tries < claimTries && ctx.Err() == nil && (isConflict(err) || errors.Is(err, pgx.ErrNoRows)):
			continue
		case sent:
			_ = j.end(ctx, o, ending{state: back, text: "the answer to the claim was lost"}, j.brief())
		}
		return trouble(fmt.Errorf("dedupe: claim effect: %w", err))
	}
}

// patient is the context of a claim: an answer that comes when the lease is nearly over is of no use. Where the caller goes, it is
// waited for a moment longer: a claim that is cut off may be committed after it was taken back.
func (j *Journal) patient(ctx context.Context) (context.Context, func()) {
	claim, cancel := context.WithTimeout(context.WithoutCancel(ctx), j.config.Lease-j.config.Lease/10)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(j.brief(), cancel) })
	return claim, func() { stop(); cancel() }
}

// use runs f on a connection. sent: the server may have got what f sent.
func (j *Journal) use(ctx context.Context, f func(*pgxpool.Conn) error) (sent bool, err error) {
	conn, err := j.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	err = f(conn)
	return !pgconn.SafeToRetry(err), err
}

// brief is how long to try what need not succeed.
func (j *Journal) brief() time.Duration { return min(j.config.Lease/3, 5*time.Second) }

func isConflict(err error) bool {
	switch sqlState(err) {
	case "40001", "40P01":
		return true
	}
	return false
}
