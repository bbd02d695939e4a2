package outbox

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A row may be locked by somebody else, for as long as that transaction lasts: a person who looks at it "for update", or
// an update of many rows. The relay does not wait to delete it or to note something down. It writes what it can, and tries
// the rest again later; until then the row counts among those that a crash would repeat. Its key goes on: the broker has
// the message.

// lockPatience is how long a statement waits for a lock, in milliseconds, before the relay passes over rows that are
// locked. That costs more, so it does it for passingTime only, and for rows that it has passed over before.
const (
	lockPatience = "100"
	passingTime  = time.Minute
)

// passing gives a statement that makes a change to those of the rows given that nobody has locked, and selects the
// offsets of the others.
func passing(table, given, lock string, change func(table, given string) string) string {
	return `with given as materialized (
    select *
    from ` + given + `
), free as materialized (
    select given.*
    from given
    join ` + table + ` as row on row."offset" = given."offset" and row.uuid = given.uuid
    where row."offset" = any ($1::bigint[])
    for ` + lock + ` of row skip locked
), changed as (
    ` + change(table, "free as given") + `
)
select row."offset"
from given
join ` + table + ` as row on row."offset" = given."offset" and row.uuid = given.uuid
where row."offset" = any ($1::bigint[])
  and given."offset" not in (select "offset" from free)`
}

// do makes the trip. Where a lock is in its way, all of it is rolled back, and it is made once more; likewise where PostgreSQL
// refuses something.
func (s *session) do(ctx context.Context, t *trip) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	t.began = time.Now()
	pass := t.pass || t.began.Before(s.passUntil)
	err := s.send(ctx, t, pass)
	var locked *pgconn.PgError
	if !pass && errors.As(err, &locked) && locked.Code == "55P03" {
		s.passUntil = time.Now().Add(passingTime)
		err = s.send(ctx, t, true)
	}
	if refused(err) && len(t.sent)+len(t.notes) > 0 {
		err = s.sendApart(ctx, t)
	}
	return err
}

// passedOver are offsets of rows.
type passedOver map[int64]bool

func (p *passedOver) add(offset int64) {
	if *p == nil {
		*p = make(passedOver)
	}
	(*p)[offset] = true
}

// take takes in what a statement has passed over. Where it may not, it gives none.
func (p *passedOver) take(rows pgx.Rows) error {
	all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	for _, offset := range all {
		p.add(offset)
	}
	return err
}

// passed is what is to be tried again.
type passed struct {
	rows    []*pending // taken by the broker
	notes   map[int64]note
	backoff backoff
	until   time.Time
}

const longestPass = time.Second

func newPassed() passed {
	return passed{notes: make(map[int64]note), backoff: backoff{first: firstBackoff}}
}

func (p *passed) any() bool { return len(p.rows) > 0 || len(p.notes) > 0 }

// retryPassed puts it on a trip when its time has come.
func (d *delivery) retryPassed(t *trip, now time.Time) {
	if !d.passed.any() || now.Before(d.passed.until) {
		return
	}
	t.pass = true
	t.sent = append(t.sent, d.passed.rows...)
	for _, n := range d.passed.notes {
		t.notes = append(t.notes, n)
	}
	d.passed.rows = nil
	clear(d.passed.notes)
}

// lockedWhenSent gives the rows that are known to be locked, though they have been sent.
func (d *delivery) lockedWhenSent(t *trip) []int64 {
	offsets := make([]int64, 0, len(d.passed.rows))
	for _, rows := range [][]*pending{d.passed.rows, t.sent} {
		for _, row := range rows {
			if row.passed {
				offsets = append(offsets, row.offset)
			}
		}
	}
	return offsets
}

// passOver has what is behind rows that the trip has found locked read again. They may have had trouble, for the table
// does not know that they have been sent since: it has kept back what is behind them, and will not the next time.
func (d *delivery) passOver(t *trip) {
	known := make(map[int64]bool, len(t.sentYet))
	for _, offset := range t.sentYet {
		known[offset] = true
	}
	for _, row := range d.passed.rows {
		if !known[row.offset] {
			d.floor.back(row.offset - 1)
			d.asked = true
		}
	}
}

// finishPassed keeps what the trip has passed over. Where the shard is to be given back, it is given up: whoever takes the
// shard sends the message again, as after a crash.
func (d *delivery) finishPassed(t *trip, now time.Time) {
	stays := func(row *pending) bool {
		leaving, held := d.shards[row.shard]
		return held && !leaving && !d.closing
	}
	t.sent = slices.DeleteFunc(t.sent, func(row *pending) bool {
		row.passed = row.passed || t.unsettled[row.offset]
		keep := t.unsettled[row.offset] && stays(row)
		if keep {
			d.passed.rows = append(d.passed.rows, row)
		}
		return keep
	})
	t.notes = slices.DeleteFunc(t.notes, func(n note) bool {
		keep := t.unnoted[n.row.offset] && stays(n.row)
		if keep {
			d.passed.notes[n.row.offset] = n
		}
		return keep
	})
	switch {
	case !d.passed.any():
		d.passed.backoff.reset()
	case t.pass || d.passed.backoff.delay == 0:
		fields := watermill.LogFields{"sent": len(d.passed.rows), "failed": len(d.passed.notes)}
		first, wait := d.passed.backoff.delay == 0, d.passed.backoff.next()
		switch {
		case t.refusal != nil:
			fields["wait"] = wait
			d.relay.logger.Error("PostgreSQL refuses what becomes of outbox rows, trying again", t.refusal, fields)
		case first:
			d.relay.logger.Info("Outbox rows are locked by another transaction, trying again", fields)
			fallthrough
		default:
			wait = min(wait, longestPass)
		}
		d.passed.until = now.Add(wait)
	}
}
