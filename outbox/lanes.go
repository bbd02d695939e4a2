package outbox

import (
	"container/heap"
	"math"
	"slices"
	"time"
)

// lane is a key that has messages in memory. One of them is with the broker at a time, or one batch.
type lane struct {
	key    string
	shard  int
	queue  []*pending // by offset
	cut    bool       // what it has from rest on is in the table only
	rest   int64
	busy   bool
	bare   bool      // it gets no more while it is busy: memory was full
	failed bool      // in the batch that is being looked at
	in     *laneHeap // that waits for its turn
	index  int       // in it
}

// laneHeap has the lane with the oldest message first.
type laneHeap []*lane

func (h laneHeap) Len() int           { return len(h) }
func (h laneHeap) Less(i, j int) bool { return h[i].queue[0].offset < h[j].queue[0].offset }
func (h laneHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *laneHeap) Push(x any) {
	ln := x.(*lane)
	ln.in, ln.index = h, len(*h)
	*h = append(*h, ln)
}
func (h *laneHeap) Pop() any {
	last := len(*h) - 1
	ln := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	ln.in = nil
	return ln
}

// lanes are the messages in memory. They are used with the delivery's lock held.
type lanes struct {
	byKey    map[string]*lane
	fresh    laneHeap             // lanes that have something to send, and nothing with the broker
	retry    laneHeap             // those of them whose next message has had trouble
	held     map[string]*laneHeap // and those whose next message is for a topic that fails, by topic
	cut      map[string]*lane
	known    map[int64]*pending // all that is in memory, up to its deletion
	waiting  int                // messages in queues
	bytes    int                // of their payloads
	sending  int                // messages with the broker
	retrying int                // those of them that have had trouble, or whose topic fails
}

func newLanes() lanes {
	return lanes{
		byKey: make(map[string]*lane),
		held:  make(map[string]*laneHeap),
		cut:   make(map[string]*lane),
		known: make(map[int64]*pending),
	}
}

// admit puts a row in its place among those of its key: nearly always the last.
func (l *lanes) admit(row *pending) {
	ln := l.byKey[row.key]
	if ln == nil {
		ln = &lane{key: row.key, shard: row.shard}
		l.byKey[row.key] = ln
	}
	l.known[row.offset] = row
	l.waiting++
	l.bytes += len(row.payload)
	place := len(ln.queue)
	for place > 0 && ln.queue[place-1].offset > row.offset {
		place--
	}
	if place == 0 {
		l.unready(ln)
	}
	ln.queue = slices.Insert(ln.queue, place, row)
	l.makeReady(ln)
}

func (l *lanes) makeReady(ln *lane) {
	if !ln.busy && ln.in == nil && len(ln.queue) > 0 {
		heap.Push(l.heapOf(ln.queue[0]), ln)
	}
}

// heapOf is where a lane waits whose next message this is.
func (l *lanes) heapOf(row *pending) *laneHeap {
	if row.trouble != nil {
		return &l.retry
	}
	if len(l.held) > 0 {
		if held := l.held[row.topic]; held != nil {
			return held
		}
	}
	return &l.fresh
}

func (l *lanes) unready(ln *lane) {
	if ln.in != nil {
		heap.Remove(ln.in, ln.index)
	}
}

// next takes up to limit messages to send, at most retries of them that have had trouble and at most fresh others: the
// oldest, and of one key its oldest first.
func (l *lanes) next(rows []*pending, limit, retries, fresh int) []*pending {
	for len(rows) < limit {
		var ln *lane
		switch {
		case retries > 0 && len(l.retry) > 0:
			ln = l.retry[0]
			retries--
		case fresh > 0 && len(l.fresh) > 0:
			ln = l.fresh[0]
			fresh--
		default:
			return l.hold(rows, limit)
		}
		rows = append(rows, l.take(ln))
		if len(ln.queue) == 0 || limit == 1 || ln.in == &l.retry || ln.in != l.heapOf(ln.queue[0]) {
			l.unready(ln)
		} else {
			heap.Fix(ln.in, ln.index)
		}
	}
	return l.hold(rows, limit)
}

func (l *lanes) take(ln *lane) *pending {
	row := ln.queue[0]
	ln.queue[0] = nil
	ln.queue = ln.queue[1:]
	ln.busy = true
	l.waiting--
	l.bytes -= len(row.payload)
	l.sending++
	if row.trouble != nil || row.probe {
		l.retrying++
	}
	return row
}

// hold keeps what is left of a batch's keys from going out before the batch is back.
func (l *lanes) hold(rows []*pending, limit int) []*pending {
	if limit > 1 {
		for _, row := range rows {
			l.unready(l.byKey[row.key])
		}
	}
	return rows
}

// returned notes that the broker has answered for a message.
func (l *lanes) returned(row *pending) *lane {
	l.sending--
	if row.trouble != nil || row.probe {
		l.retrying--
	}
	return l.byKey[row.key]
}

// goOn lets a lane send its next message.
func (l *lanes) goOn(ln *lane) {
	if !ln.busy {
		return
	}
	ln.busy, ln.failed, ln.bare = false, false, false
	l.settle(ln)
}

// settle puts a lane where it belongs, which may be nowhere.
func (l *lanes) settle(ln *lane) {
	if !ln.busy && !ln.cut && len(ln.queue) == 0 {
		delete(l.byKey, ln.key)
		return
	}
	l.makeReady(ln)
}

// drop forgets what is in the queues of some shards: it is still in the table.
func (l *lanes) drop(which func(shard int) bool) {
	for _, ln := range l.byKey {
		if which(ln.shard) {
			l.clear(ln, math.MinInt64)
		}
	}
}

// clear forgets what a lane has behind an offset. It gives the troubles of the messages forgotten.
func (l *lanes) clear(ln *lane, offset int64) []*trouble {
	l.unready(ln)
	keep := len(ln.queue)
	for keep > 0 && ln.queue[keep-1].offset > offset {
		keep--
	}
	troubles := l.truncate(ln, keep)
	if ln.cut && ln.rest > offset {
		l.whole(ln)
	}
	l.settle(ln)
	return troubles
}

// trim forgets what a lane has beyond some messages. The lane remembers where it goes on in the table.
func (l *lanes) trim(ln *lane, keep int) []*trouble {
	if len(ln.queue) <= keep {
		return nil
	}
	ln.cut, ln.rest = true, ln.queue[keep].offset
	l.cut[ln.key] = ln
	return l.truncate(ln, keep)
}

// strip leaves all that a busy lane has to the table, until the broker has answered.
func (l *lanes) strip(ln *lane) []*trouble {
	ln.bare = true
	return l.trim(ln, 0)
}

// whole notes that nothing of a lane is in the table only, but for what the relay has yet to read.
func (l *lanes) whole(ln *lane) {
	ln.cut = false
	delete(l.cut, ln.key)
}

func (l *lanes) truncate(ln *lane, keep int) (troubles []*trouble) {
	dropped := ln.queue[keep:]
	for _, row := range dropped {
		delete(l.known, row.offset)
		l.bytes -= len(row.payload)
		if row.trouble != nil {
			troubles = append(troubles, row.trouble)
		}
	}
	l.waiting -= len(dropped)
	clear(dropped)
	ln.queue = ln.queue[:keep]
	return troubles
}

// holdTopic sets the lanes apart whose next message is for a topic; releaseTopic puts them back.
func (l *lanes) holdTopic(topic string) {
	l.held[topic] = new(laneHeap)
	l.sortOut(slices.Clone(l.fresh))
}

func (l *lanes) releaseTopic(topic string) {
	held := l.held[topic]
	delete(l.held, topic)
	if held != nil {
		l.sortOut(slices.Clone(*held))
	}
}

func (l *lanes) sortOut(some []*lane) {
	for _, ln := range some {
		if ln.in != l.heapOf(ln.queue[0]) {
			l.unready(ln)
			l.makeReady(ln)
		}
	}
}

// lease tells how long the locks are held for sure.
type lease struct{ at time.Time }

// holds compares the wall clock too: the other one may stand still while the machine sleeps.
func (l lease) holds(now time.Time) bool {
	return max(now.Sub(l.at), now.Round(0).Sub(l.at.Round(0))) < trustFor
}
