package outbox

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// PostgreSQL may refuse to have a row changed: a trigger raises, or another table refers to it. That is like a lock that
// somebody holds for long: the relay writes the rest, and goes on.

// refused tells whether PostgreSQL works and will not do what the relay asks for, which it may go on with.
func refused(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.SeverityUnlocalized == "ERROR"
}

// apartTime is how long the relay looks which rows are refused. What it has not come to is left for the next time; it must not
// come near to the end of its lease.
const apartTime = time.Second

// sendApart writes what a trip has to tell in transactions of their own, as far as PostgreSQL takes it, and makes the trip
// without. If it was not that which was refused, the trip fails again.
func (s *session) sendApart(ctx context.Context, t *trip) error {
	t.unsettled, t.unnoted = nil, nil
	until := time.Now().Add(apartTime)
	unsettled, refusal, err := apart(shuffled(t.sent), until, func(some []*pending) error {
		return s.write(ctx, s.sql.settle[1], settleArgs(some), &t.unsettled)
	})
	if err != nil {
		return err
	}
	unnoted, other, err := apart(shuffled(t.notes), until, func(some []note) error {
		return s.write(ctx, s.sql.note[1], s.noteArgs(some), &t.unnoted)
	})
	if err != nil {
		return err
	}
	for _, row := range unsettled {
		t.unsettled.add(row.offset)
	}
	for _, n := range unnoted {
		t.unnoted.add(n.row.offset)
	}
	t.refusal = cmp.Or(refusal, other)

	sent, notes := t.sent, t.notes
	t.sent, t.notes = nil, nil
	err = s.send(ctx, t, true)
	t.sent, t.notes = sent, notes
	return err
}

// write makes one statement of a trip, over the rows that are locked.
func (s *session) write(ctx context.Context, sql string, args []any, locked *passedOver) error {
	rows, err := s.conn.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	return locked.take(rows)
}

// apart writes rows in ever smaller parts until it is known which of them are refused, or time is up. It gives those that are
// not written, and the first refusal of one.
func apart[T any](rows []T, until time.Time, write func([]T) error) (left []T, refusal, err error) {
	if len(rows) == 0 {
		return nil, nil, nil
	}
	if !time.Now().Before(until) {
		return rows, nil, nil
	}
	switch err := write(rows); {
	case err == nil:
		return nil, nil, nil
	case !refused(err):
		return nil, nil, err
	case len(rows) == 1:
		return rows, err, nil
	}
	half := len(rows) / 2
	left, refusal, err = apart(rows[:half], until, write)
	if err != nil {
		return nil, nil, err
	}
	rest, other, err := apart(rows[half:], until, write)
	return slices.Concat(left, rest), cmp.Or(refusal, other), err
}

// shuffled has each of many refused rows be among the first some time.
func shuffled[T any](rows []T) []T {
	rows = slices.Clone(rows)
	rand.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	return rows
}
