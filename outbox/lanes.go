package outbox

import (
	"container/heap"
	"time"
)

// lane is a key that has messages in memory. One of them is with the broker at a time, or one batch.
type lane struct {
	key    string
	queue  []*pending
	busy   bool
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
	fresh    laneHeap           // lanes that have something to send, and nothing with the broker
	retry    laneHeap           // and those whose next message has had trouble
	known    map[int64]*pending // all that is in memory, up to its deletion
	waiting  int                // messages in queues
	sending  int                // messages with the broker
	retrying int                // those of them that have had trouble
}

func newLanes() lanes {
	return lanes{byKey: make(map[string]*lane), known: make(map[int64]*pending)}
}

// admit puts a row behind those of its key; before them where it has had trouble.
func (l *lanes) admit(row *pending) {
	ln := l.byKey[row.key]
	if ln == nil {
		ln = &lane{key: row.key}
		l.byKey[row.key] = ln
	}
	l.known[row.offset] = row
	l.waiting++
	if row.trouble != nil && len(ln.queue) > 0 {
		l.unready(ln)
		ln.queue = append([]*pending{row}, ln.queue...)
	} else {
		ln.queue = append(ln.queue, row)
	}
	l.makeReady(ln)
}

func (l *lanes) makeReady(ln *lane) {
	if ln.busy || ln.in != nil || len(ln.queue) == 0 {
		return
	}
	if ln.queue[0].trouble != nil {
		heap.Push(&l.retry, ln)
	} else {
		heap.Push(&l.fresh, ln)
	}
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
			l.retrying++
		case fresh > 0 && len(l.fresh) > 0:
			ln = l.fresh[0]
			fresh--
		default:
			return l.hold(rows, limit)
		}
		rows = append(rows, ln.queue[0])
		ln.queue[0] = nil
		ln.queue = ln.queue[1:]
		ln.busy = true
		l.waiting--
		l.sending++
		switch {
		case len(ln.queue) == 0 || limit == 1 || ln.in == &l.retry:
			l.unready(ln)
		default:
			heap.Fix(ln.in, ln.index)
		}
	}
	return l.hold(rows, limit)
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
	if row.trouble != nil {
		l.retrying--
	}
	return l.byKey[row.key]
}

// goOn lets a lane send its next message.
func (l *lanes) goOn(ln *lane) {
	if !ln.busy {
		return
	}
	ln.busy, ln.failed = false, false
	if len(ln.queue) == 0 {
		delete(l.byKey, ln.key)
		return
	}
	l.makeReady(ln)
}

// drop forgets what is in the queues of some lanes: it is still in the table.
func (l *lanes) drop(which func(*pending) bool) {
	for _, ln := range l.byKey {
		if len(ln.queue) > 0 && which(ln.queue[0]) {
			l.dropKey(ln.key)
		}
	}
}

func (l *lanes) dropKey(key string) {
	if ln := l.byKey[key]; ln != nil {
		l.clear(ln)
		if !ln.busy {
			delete(l.byKey, key)
		}
	}
}

func (l *lanes) clear(ln *lane) {
	l.unready(ln)
	for _, row := range ln.queue {
		delete(l.known, row.offset)
	}
	l.waiting -= len(ln.queue)
	ln.queue = nil
}

// lease tells how long the locks are held for sure.
type lease struct{ at time.Time }

// holds compares the wall clock too: the other one may stand still while the machine sleeps.
func (l lease) holds(now time.Time) bool {
	return max(now.Sub(l.at), now.Round(0).Sub(l.at.Round(0))) < trustFor
}
