package outbox

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// trouble is a message that the broker did not take. It stays in the table, and what comes behind it in its key waits
// there too; memory holds only this.
type trouble struct {
	offset int64
	uuid   string
	key    string
	topic  string // where this relay has tried it
	shard  int

	attempts int // those that count
	counted  bool
	weighed  time.Time // when one counted last, or the relay has known of it since
	parked   bool
	until    time.Time // of the next attempt
	backoff  backoff
	taken    uint64 // how many messages the broker had taken at the last failure
	busy     bool   // it is being read again or sent
	holds    bool   // its key waits
	index    int    // among those that hold the key
}

// is tells whether a row is the message still: a person may have corrected its key.
func (t *trouble) is(row *pending) bool { return t.uuid == row.uuid && t.key == row.key }

// troubles are those of the shards that a relay holds.
type troubles struct {
	byOffset map[int64]*trouble
	waiting  map[string]*troubleHeap // keys, and those of their messages that hold them up
	due      dueHeap
}

func newTroubles() troubles {
	return troubles{byOffset: make(map[int64]*trouble), waiting: make(map[string]*troubleHeap)}
}

// first is the oldest of the messages that hold up a key. No other of them is tried.
func (ts *troubles) first(key string) *trouble {
	if held := ts.waiting[key]; held != nil {
		return (*held)[0]
	}
	return nil
}

func (ts *troubles) postpone(t *trouble, until time.Time) {
	t.until = until
	heap.Push(&ts.due, dueEntry{until, t})
}

// dropped has messages read again that were to be sent again.
func (ts *troubles) dropped(some []*trouble, now time.Time) {
	for _, t := range some {
		t.busy = false
		ts.postpone(t, now)
	}
}

// add takes in a trouble that holds up its key or does not.
func (ts *troubles) add(t *trouble, holds bool) {
	ts.byOffset[t.offset] = t
	if holds {
		ts.hold(t)
	}
}

func (ts *troubles) remove(t *trouble) {
	delete(ts.byOffset, t.offset)
	ts.release(t)
}

func (ts *troubles) hold(t *trouble) {
	if t.holds {
		return
	}
	t.holds = true
	held := ts.waiting[t.key]
	if held == nil {
		held = new(troubleHeap)
		ts.waiting[t.key] = held
	}
	heap.Push(held, t)
}

func (ts *troubles) release(t *trouble) {
	if !t.holds {
		return
	}
	t.holds = false
	held := ts.waiting[t.key]
	heap.Remove(held, t.index)
	if len(*held) == 0 {
		delete(ts.waiting, t.key)
	} else if next := (*held)[0]; !next.parked && !next.busy {
		ts.postpone(next, next.until) // its turn may have come while it was not the first
	}
}

// troubleHeap has the oldest message first.
type troubleHeap []*trouble

func (h troubleHeap) Len() int           { return len(h) }
func (h troubleHeap) Less(i, j int) bool { return h[i].offset < h[j].offset }
func (h troubleHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *troubleHeap) Push(x any) {
	t := x.(*trouble)
	t.index = len(*h)
	*h = append(*h, t)
}
func (h *troubleHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}

// troublesSQL reads them from the partial index that is made for it. The time left is PostgreSQL's to tell: clocks
// differ. A row that is infinite and not parked was parked, and a person has cleared that by hand: it is due.
func troublesSQL(table string, shards int) string {
	return `select "offset", key, uuid, shard, attempts, parked,
    case when parked or not isfinite(next_attempt_at) then 0 else extract(epoch from next_attempt_at - clock_timestamp())::float8 end
from (
    select "offset", key, uuid, attempts, next_attempt_at, parked_at is not null as parked, ` + shardOf(shards) + ` as shard
    from ` + table + `
    where next_attempt_at is not null
      and sent_at is null
) as row
where shard = any ($1::integer[])`
}

// readTroubles reads those of some shards.
func (s *session) readTroubles(ctx context.Context, shards []int) ([]*trouble, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := s.conn.Query(ctx, s.sql.troubles, shards)
	if err != nil {
		return nil, fmt.Errorf("outbox: relay: read failed messages: %w", err)
	}
	now := time.Now()
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*trouble, error) {
		t := &trouble{backoff: backoff{first: firstBackoff}}
		var left float64
		if err := row.Scan(&t.offset, &t.key, &t.uuid, &t.shard, &t.attempts, &t.parked, &left); err != nil {
			return nil, err
		}
		wait := time.Duration(min(max(left, 0), longestBackoff.Seconds()) * float64(time.Second))
		t.until, t.weighed = now.Add(wait), now
		t.backoff.delay = wait // whoever had waited long goes on so
		return t, nil
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: relay: read failed messages: %w", err)
	}
	return all, nil
}

// firstBackoff is the wait after a first failure.
const firstBackoff = 100 * time.Millisecond

// permanent tells whether an error says of itself that trying again will not help.
func permanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// faultText is an error as the table can hold it.
func faultText(err error) string {
	text := strings.ToValidUTF8(strings.ReplaceAll(err.Error(), "\x00", ""), "\uFFFD")
	if len(text) > 1000 {
		text = strings.ToValidUTF8(text[:1000], "")
	}
	return text
}

// dueHeap has the trouble first that is to be tried first. An entry whose time is not its trouble's any more is stale.
type dueHeap []dueEntry

type dueEntry struct {
	until time.Time
	of    *trouble
}

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(dueEntry)) }
func (h *dueHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
