package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// trip is one round trip of the relay: what it has to tell PostgreSQL, and what it asks. All of it is one transaction,
// and none is open in between.
type trip struct {
	sent  []*pending // taken by the broker: to be deleted
	notes []note     // about messages that were not

	fetch    bool
	floor    int64
	limit    int
	bytes    int     // of payload that may come
	known    []int64 // rows above the floor that are not asked for
	shards   []int   // nil: all
	troubled bool    // there may be keys that must wait
	sentYet  []int64 // rows that were sent, and stay while others have them locked: no key waits for them
	cutKeys  []string
	rests    []int64 // the rows of cutKeys from here on are not asked for
	due      []int64 // troubled rows whose time has come
	dueBytes int
	refills  []*refill // lanes to go on with
	pass     bool      // some of sent and notes were locked the last time

	began     time.Time
	unsettled passedOver // of sent, those locked by others, and those that PostgreSQL refuses to change
	unnoted   passedOver // of notes
	refusal   error      // why some of these are not written, if PostgreSQL refuses that
	page      page
	rows      []*pending
	cut       bool       // there were more than the bytes allowed
	again     []*pending // those of due that are still there
	dueCut    bool       // likewise
}

// pending is a row that waits to be sent.
type pending struct {
	offset   int64
	topic    string
	key      string
	uuid     string
	payload  []byte
	metadata []byte
	shard    int
	trouble  *trouble // that it had before, if any
	began    uint64   // how many messages the broker had taken when it was given this one
	old      bool     // it was read in an earlier session, or before the offsets began anew, and not seen since
	passed   bool     // others had it locked when it was to be removed
	probe    bool     // it tells whether its topic still fails
}

// refill is what a lane asks for that has been cut.
type refill struct {
	lane  *lane
	rest  int64
	limit int
	bytes int
	rows  []*pending
	cut   bool
}

// note is what is written down about a message that the broker did not take.
type note struct {
	row      *pending
	attempts int
	fault    string
	wait     time.Duration
	parked   bool
}

// relaySQL are the statements of a relay, for its table and its number of shards.
type relaySQL struct {
	touch     string
	drawn     string
	note      [2]string       // waiting for rows that are locked, or passing over them
	settle    [2]string       // likewise
	fetch     [2][2][2]string // all shards or some; without or with keys that must wait; without or with lanes cut
	refill    string
	due       string
	troubles  string
	snapshots string
}

func newRelaySQL(table string, sequence *string, config RelayConfig) relaySQL {
	q := relaySQL{
		touch:     "select from " + table + " limit 0",
		drawn:     drawnSQL(sequence),
		note:      [2]string{noteSQL(table, noted), passing(table, noted, "no key update", noteSQL)},
		settle:    [2]string{removeSQL(table, taken), passing(table, taken, "update", removeSQL)},
		refill:    refillSQL(table, config.Shards, config.PassParked),
		due:       dueSQL(table, config.Shards),
		troubles:  troublesSQL(table, config.Shards),
		snapshots: "select pg_current_snapshot()::text, pg_backend_pid(), coalesce(to_regclass($1)::oid::bigint, 0)",
	}
	if config.KeepSent {
		q.settle = [2]string{keepSQL(table, taken), passing(table, taken, "no key update", keepSQL)}
	}
	for some := range 2 {
		for waiting := range 2 {
			for cut := range 2 {
				q.fetch[some][waiting][cut] = fetchSQL(table, config.Shards, some == 1, waiting == 1, cut == 1, config.PassParked)
			}
		}
	}
	return q
}

// drawnSQL reads the sequence, and then takes a transaction id, unless nothing was drawn since. The sequence's file is
// another one when it has begun anew, as after "truncate ... restart identity".
func drawnSQL(sequence *string) string {
	if sequence == nil {
		// The offsets come from elsewhere: nothing is known of them, and the floor stays where it is.
		return "select $1::bigint, null::text, 0::bigint"
	}
	return `select drawn.last, case when drawn.last > $1::bigint then pg_current_xact_id()::text end, drawn.file
from (
    select last_value - case when is_called then 0 else 1 end as last, pg_relation_filenode(tableoid)::bigint as file
    from ` + *sequence + `
    offset 0
) as drawn`
}

// What a trip tells is given as arrays. Each statement also says that the offset is one of them, so that the join with them
// reads these rows only, whatever the planner believes of the table.
const (
	noted = `unnest($1::bigint[], $2::text[], $3::integer[], $4::text[], $5::bigint[], $6::boolean[])
    as given ("offset", uuid, attempts, fault, wait, parked)`
	taken = `unnest($1::bigint[], $2::text[]) as given ("offset", uuid)`
)

// noteSQL writes down failures. A parked row has next_attempt_at = infinity, so that one index finds all rows that have
// had trouble.
func noteSQL(table, given string) string {
	return `update ` + table + ` as row
set attempts = given.attempts,
    last_error = given.fault,
    next_attempt_at = case when given.parked then 'infinity' else clock_timestamp() + given.wait * interval '1 microsecond' end,
    parked_at = case when given.parked then clock_timestamp() end
from ` + given + `
where row."offset" = any ($1::bigint[])
  and row."offset" = given."offset"
  and row.uuid = given.uuid
  and row.sent_at is null`
}

// removeSQL deletes what the broker has taken. An offset alone does not name a message for ever: a standby that was
// behind when it took over gives the offsets that it has not seen to other messages.
func removeSQL(table, given string) string {
	return `delete from ` + table + ` as row
using ` + given + `
where row."offset" = any ($1::bigint[])
  and row."offset" = given."offset"
  and row.uuid = given.uuid`
}

func keepSQL(table, given string) string {
	return `update ` + table + ` as row
set sent_at = clock_timestamp(),
    next_attempt_at = null
from ` + given + `
where row."offset" = any ($1::bigint[])
  and row."offset" = given."offset"
  and row.uuid = given.uuid`
}

// fetchSQL reads what is visible, in the order of the primary key, which it follows without a sort. Rows of one key
// become visible in the order of their offsets: their writers hold the key's lock from before the offset until after
// the commit. Columns are selected as they are: an expression under the name of one would be what "order by" means.
//
// Rows behind one of their key that has had trouble, and is not sent yet, are left out. The probe of the partial index is a
// scalar subquery so that no join can take its place, which would want a sort.
func fetchSQL(table string, shards int, some, waiting, cut, passParked bool) string {
	var shardClause, waitClause, cutClause string
	args := 3
	if some {
		args++
		shardClause = fmt.Sprintf("  and %s = any ($%d::integer[])", shardOf(shards), args)
	}
	if waiting {
		args++
		waitClause = notBehind(table, args, passParked)
	}
	if cut {
		cutClause = fmt.Sprintf(`  and (
    select true
    from unnest($%d::text[], $%d::bigint[]) as cut (key, rest)
    where cut.key = row.key
      and cut.rest <= row."offset"
    limit 1
  ) is null`, args+1, args+2)
	}
	return lines(
		`select "offset", topic, key, uuid, payload, metadata, `+shardOf(shards)+` as shard`,
		`from `+table+` as row`,
		`where "offset" > $1`,
		`  and next_attempt_at is null`,
		`  and parked_at is null`,
		`  and sent_at is null`,
		`  and "offset" not in (select unnest($2::bigint[]))`,
		shardClause,
		waitClause,
		cutClause,
		`order by "offset"`,
		`limit $3`,
	)
}

// notBehind is the clause for that. An argument says which rows have been sent.
func notBehind(table string, sent int, passParked bool) string {
	clause := `  and (
    select true
    from ` + table + ` as first
    where first.key = row.key
      and first.next_attempt_at is not null
      and first."offset" < row."offset"
      and first."offset" <> all ($` + strconv.Itoa(sent) + `::bigint[])
`
	if passParked {
		clause += "      and first.parked_at is null\n"
	}
	return clause + `    limit 1
  ) is null`
}

// refillSQL reads what one key has from an offset on. A key whose lane was cut has many rows: walking over those of
// others finds some soon.
func refillSQL(table string, shards int, passParked bool) string {
	return lines(
		`select "offset", topic, key, uuid, payload, metadata, `+shardOf(shards)+` as shard`,
		`from `+table+` as row`,
		`where "offset" >= $1`,
		`  and key = $2`,
		`  and next_attempt_at is null`,
		`  and parked_at is null`,
		`  and sent_at is null`,
		notBehind(table, 4, passParked),
		`order by "offset"`,
		`limit $3`,
	)
}

func dueSQL(table string, shards int) string {
	return `select "offset", topic, key, uuid, payload, metadata, ` + shardOf(shards) + ` as shard
from ` + table + `
where "offset" = any ($1::bigint[])
  and parked_at is null
  and sent_at is null
order by "offset"`
}

// send sends a trip and takes in what comes back. It waits for rows that are locked, for a moment, or passes over them.
func (s *session) send(ctx context.Context, t *trip, pass bool) error {
	t.page = page{}
	var b pgx.Batch
	if !pass && (len(t.notes) > 0 || len(t.sent) > 0) {
		b.Queue("select set_config('lock_timeout', $1, true)", lockPatience)
	}
	if t.fetch {
		// The table is locked before the sequence, as a truncate locks them. Nothing may give the transaction an id before
		// the sequence is read.
		b.Queue(s.sql.touch)
		b.Queue(s.sql.drawn, t.floor).QueryRow(func(row pgx.Row) error {
			var xid *string
			err := row.Scan(&t.page.mark.offset, &xid, &t.page.file)
			if err == nil && xid != nil {
				t.page.mark.xid, err = strconv.ParseUint(*xid, 10, 64)
			}
			return err
		})
	}
	way := 0
	if pass {
		way = 1
	}
	if len(t.notes) > 0 {
		b.Queue(s.sql.note[way], s.noteArgs(t.notes)...).Query(t.unnoted.take)
	}
	if len(t.sent) > 0 {
		b.Queue(s.sql.settle[way], settleArgs(t.sent)...).Query(t.unsettled.take)
	}
	if t.fetch {
		b.Queue(s.sql.snapshots, s.table).QueryRow(s.snapshotInto(&t.page.before))
		s.queueFetch(&b, t)
	}
	// After the fetch: see finishRefills.
	for _, r := range t.refills {
		b.Queue(s.sql.refill, r.rest, r.lane.key, r.limit, t.sentYet).Query(func(rows pgx.Rows) (err error) {
			r.rows, r.cut, err = collect(rows, r.bytes)
			return err
		})
	}
	if len(t.due) > 0 {
		b.Queue(s.sql.due, t.due).Query(func(rows pgx.Rows) (err error) {
			t.again, t.dueCut, err = collect(rows, t.dueBytes)
			return err
		})
	}
	b.Queue(s.sql.snapshots, s.table).QueryRow(s.snapshotInto(&t.page.after))
	if err := s.conn.SendBatch(ctx, &b).Close(); err != nil {
		if errors.Is(err, ErrPooled) {
			return err
		}
		return fmt.Errorf("outbox: relay: %w", err)
	}
	return nil
}

func (s *session) queueFetch(b *pgx.Batch, t *trip) {
	some, waiting, cut := 0, 0, 0
	args := []any{t.floor, t.known, t.limit}
	if t.shards != nil {
		some = 1
		args = append(args, t.shards)
	}
	if t.troubled {
		waiting = 1
		args = append(args, t.sentYet)
	}
	if len(t.cutKeys) > 0 {
		cut = 1
		args = append(args, t.cutKeys, t.rests)
	}
	b.Queue(s.sql.fetch[some][waiting][cut], args...).Query(func(rows pgx.Rows) (err error) {
		t.rows, t.cut, err = collect(rows, t.bytes)
		t.page.end = math.MaxInt64
		if t.full() {
			t.page.end = t.rows[len(t.rows)-1].offset
		}
		return err
	})
}

// errReplaced ends the session where another table has the name of the outbox, or another sequence gives the offsets: what is known
// of the old ones does not hold, and neither do the locks.
var errReplaced = errors.New("the table, or its sequence, is another one now")

// snapshotInto also looks whether the session still is one, and the table the one that it began with: those that the trip has
// read stay what they are until it ends.
func (s *session) snapshotInto(to *snapshot) func(pgx.Row) error {
	return func(row pgx.Row) (err error) {
		var (
			text string
			pid  uint32
			oid  uint32
		)
		if err := row.Scan(&text, &pid, &oid); err != nil {
			return err
		}
		switch {
		case pid != s.pid:
			return ErrPooled
		case oid != s.oid:
			return errReplaced
		}
		*to, err = parseSnapshot(text)
		return err
	}
}

// full tells whether there may be more rows than have come.
func (t *trip) full() bool { return t.cut || len(t.rows) == t.limit }

// collect keeps the first row and those whose payloads, with what is before them, are within the bytes allowed. What comes
// behind them is read off the connection, and left in the table.
func collect(rows pgx.Rows, bytes int) (all []*pending, cut bool, err error) {
	for rows.Next() {
		if cut {
			continue
		}
		p := new(pending)
		if err := rows.Scan(&p.offset, &p.topic, &p.key, &p.uuid, &p.payload, &p.metadata, &p.shard); err != nil {
			return nil, false, err
		}
		if bytes -= len(p.payload); bytes < 0 && len(all) > 0 {
			cut = true
			continue
		}
		all = append(all, p)
	}
	return all, cut, rows.Err()
}

func settleArgs(rows []*pending) []any {
	offsets, uuids := make([]int64, len(rows)), make([]string, len(rows))
	for i, row := range rows {
		offsets[i], uuids[i] = row.offset, row.uuid
	}
	return []any{offsets, uuids}
}

func (s *session) noteArgs(notes []note) []any {
	var (
		offsets  = make([]int64, len(notes))
		uuids    = make([]string, len(notes))
		attempts = make([]int32, len(notes))
		faults   = make([]string, len(notes))
		waits    = make([]int64, len(notes))
		parked   = make([]bool, len(notes))
	)
	for i, n := range notes {
		offsets[i], uuids[i] = n.row.offset, n.row.uuid
		attempts[i], faults[i], waits[i], parked[i] = int32(n.attempts), n.fault, n.wait.Microseconds(), n.parked
		if s.ascii {
			quoted := strconv.QuoteToASCII(n.fault)
			faults[i] = quoted[1 : len(quoted)-1]
		}
	}
	return []any{offsets, uuids, attempts, faults, waits, parked}
}
