package middleware

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/attempt"
	"github.com/watermill-once/watermill-once/internal/journal"
	"github.com/watermill-once/watermill-once/outbox"
)

// run is what a handler finds on its message's context.
type run struct {
	db       DB
	consumer string
	eventID  string
	attempt  *attempt.Attempt // nil in a Leased handler
	tx       handlerTx
	journal  *journal.Journal // nil in a transaction
}

type runKey struct{}

func runFromContext(ctx context.Context) (*run, bool) {
	r, ok := ctx.Value(runKey{}).(*run)
	return r, ok
}

// PgxTx gives the handler's transaction where the DB is Pgx. False outside a handler, and where the DB is SQL: nothing is to be
// done then but to return an error.
//
// Commit and Rollback on it return ErrTxManaged, and the transaction goes on. Begin on it is a savepoint; rolling that back takes
// back what was published or queued under it. Savepoints in raw SQL text are not seen: what was queued or published under one
// leaves with the COMMIT even where it was rolled back. Once the attempt has ended, everything on it returns pgx.ErrTxClosed; only
// what Conn and LargeObjects have given before does not know.
//
// It is for one goroutine at a time, as all of pgx. A goroutine that still uses it when the handler returns fails the attempt.
func PgxTx(ctx context.Context) (pgx.Tx, bool) {
	r, ok := runFromContext(ctx)
	if !ok || r.tx.pgx == nil {
		return nil, false
	}
	return r.tx.pgx, true
}

// SQLTx gives the handler's transaction where the DB is SQL. False outside a handler, and where the DB is Pgx.
//
// Commit and Rollback on it return ErrTxManaged; the transaction goes on, but database/sql takes that *sql.Tx for done, and SQLTx
// gives a fresh one on the same transaction.
func SQLTx(ctx context.Context) (*sql.Tx, bool) {
	r, ok := runFromContext(ctx)
	if !ok || r.tx.sql == nil {
		return nil, false
	}
	return r.tx.sql.Tx(ctx)
}

// Queue keeps a write until the handler has returned and sends it together with the COMMIT: it costs no round trip of its
// own. What it fails with, the attempt fails with. A query is one statement, and uses PostgreSQL's placeholders ($1); args must
// not be changed before the handler has returned. The handler cannot see what it queued. Outside a handler it returns
// outbox.ErrNoTransaction.
func Queue(ctx context.Context, query string, args ...any) error {
	r, ok := runFromContext(ctx)
	if !ok || r.attempt == nil {
		return fmt.Errorf("middleware: queue: %w", outbox.ErrNoTransaction)
	}
	if strings.TrimSpace(query) == "" {
		return errors.New("middleware: queue: the query is empty")
	}
	if err := r.attempt.Queue(attempt.Statement{SQL: query, Args: args}); err != nil {
		return fmt.Errorf("middleware: queue: %w: %w", outbox.ErrNoTransaction, err)
	}
	return nil
}

// EventID gives the id of the event being handled, as dedupe.Config.Key found it; "" outside a handler.
func EventID(ctx context.Context) string {
	if r, ok := runFromContext(ctx); ok {
		return r.eventID
	}
	return ""
}

// IdempotencyKey derives a key for one operation of the event being handled, to be passed to another system: the same on every
// attempt, delivery and machine. It is the hex SHA-256 over consumer, event id and operation, each preceded by its length (8 bytes,
// big endian): 64 ASCII characters. It is for handlers behind Transactional (to put it in the message that asks for the call) and
// behind Leased. False outside of them, or without an event id: "" would be a key that all share. Other handlers have
// IdempotencyKeyFor.
func IdempotencyKey(ctx context.Context, operation string) (string, bool) {
	r, ok := runFromContext(ctx)
	if !ok {
		return "", false
	}
	key, err := IdempotencyKeyFor(r.consumer, r.eventID, operation)
	return key, err == nil
}

// IdempotencyKeyFor is IdempotencyKey for a handler that is behind neither, as one that calls by dedupe.Do: for the consumer of that
// name, and the event with that id, be it the message's UUID or what a dedupe.KeyFunc finds. Without either it would be a key that
// many share: ErrNoConsumer, or dedupe.ErrMissingKey, which is permanent.
func IdempotencyKeyFor(consumer, eventID, operation string) (string, error) {
	switch {
	case consumer == "":
		return "", fmt.Errorf("middleware: idempotency key: %w", emptyConsumer{})
	case eventID == "":
		return "", fmt.Errorf("middleware: idempotency key: %w", dedupe.ErrMissingKey)
	}
	sum := derive(consumer, eventID, operation)
	return hex.EncodeToString(sum[:]), nil
}

// emptyConsumer is ErrNoConsumer for a caller who has no Config.
type emptyConsumer struct{}

func (emptyConsumer) Error() string { return "the consumer is empty" }

func (emptyConsumer) Is(target error) bool { return target == ErrNoConsumer }

// DeriveUUID derives a UUID for a message that the handler produces, the same on every run of this event: a deliberate second
// run then does not look like new events downstream. It is a version 8 UUID made of SHA-256. name tells several messages of one event
// apart. False outside a handler, or without an event id.
func DeriveUUID(ctx context.Context, name string) (string, bool) {
	r, ok := runFromContext(ctx)
	if !ok || r.eventID == "" {
		return "", false
	}
	u := derive(r.consumer, r.eventID, "uuid", name)
	u[6] = u[6]&0x0f | 0x80 // version 8
	u[8] = u[8]&0x3f | 0x80 // RFC 9562's variant
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16]), true
}

func derive(parts ...string) [sha256.Size]byte {
	var text []byte
	for _, part := range parts {
		text = binary.BigEndian.AppendUint64(text, uint64(len(part)))
		text = append(text, part...)
	}
	return sha256.Sum256(text)
}
