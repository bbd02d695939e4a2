package outbox

import (
	"container/heap"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// failed notes that the broker did not take a message. What is behind it in its key is left in the table until it is
// gone.
func (d *delivery) failed(row *pending, fault error, now time.Time) {
	delete(d.lanes.known, row.offset)
	delete(d.passed.notes, row.offset)
	if _, held := d.shards[row.shard]; !held {
		return // the session was lost meanwhile, and the shard is another relay's
	}
	if !permanent(fault) {
		d.suspect(row.topic, now)
	}
	t := d.troubles.byOffset[row.offset]
	if t == nil {
		t = &trouble{offset: row.offset, uuid: row.uuid, key: row.key, shard: row.shard, taken: row.began, weighed: now}
		t.backoff.first = firstBackoff
		d.unparked++
		d.troubles.add(t, true)
	}
	// When the broker is down, no message is to blame.
	t.counted = permanent(fault) || d.accepted > t.taken || d.alone() && now.Sub(t.weighed) >= lonePace
	if t.counted {
		t.attempts++
		t.weighed = now
	}
	t.taken, t.busy, t.topic = d.accepted, false, row.topic
	wait := t.backoff.next()
	t.until = now.Add(wait)
	var unreadable *unreadableError
	n := note{row: row, attempts: t.attempts, fault: faultText(fault), wait: wait}
	n.parked = errors.As(fault, &unreadable) || t.counted && t.attempts >= d.relay.config.MaxAttempts
	d.notes = append(d.notes, n)
	fields := watermill.LogFields{
		"topic": row.topic, "message_uuid": row.uuid, "offset": row.offset, "attempts": t.attempts,
	}
	if n.parked {
		d.park(t)
		d.relay.logger.Error("Could not publish from outbox, the message is parked", fault, fields)
		return
	}
	d.troubles.postpone(t, t.until)
	fields["wait"] = wait
	d.relay.logger.Error("Could not publish from outbox, the message's key waits", fault, fields)
}

// lonePace is the least time between two failures that count of a message that is alone. It may be the broker that is down:
// an outage of hours must not leave a key parked, which waits for a person then. But it may also be the message.
const lonePace = time.Hour

// alone tells whether nothing but the message at hand waits to be sent, which then cannot be compared with any other. Those
// behind it in its key cannot be tried before it.
func (d *delivery) alone() bool {
	return d.lanes.waiting == 0 && d.lanes.sending == 0 && d.unparked <= 1 && !d.more &&
		len(d.lanes.cut) == 0 && len(d.aside) == 0
}

// park leaves a message to a person. Where its key may go on, it does so when the table knows.
func (d *delivery) park(t *trouble) {
	t.parked = true
	d.unparked--
}

// finishNotes lets keys go on behind messages that the table says are parked.
func (d *delivery) finishNotes(t *trip) {
	for _, n := range t.notes {
		if trouble := d.troubles.byOffset[n.row.offset]; trouble != nil && n.parked && d.relay.config.PassParked {
			d.troubles.release(trouble)
			d.floor.back(n.row.offset)
			d.asked = true
		}
	}
}

// forget is for a message that is gone: what waited behind it is below the floor.
func (d *delivery) forget(t *trouble) {
	d.removeTrouble(t)
	d.floor.back(t.offset - 1)
	d.asked = true
}

func (d *delivery) removeTrouble(t *trouble) {
	d.troubles.remove(t)
	if !t.parked {
		d.unparked--
	}
	t.until = time.Time{} // its entry in the heap is stale
}

// dueNow gives the messages whose time has come, to be read again; else it shortens wait. They must not take all the
// memory: those that wait for a broker that hangs would leave the others none.
func (d *delivery) dueNow(now time.Time, wait *time.Duration) []int64 {
	var offsets []int64
	limit := min(max(1, d.pageSize()/4)-len(d.lanes.retry), d.retryFit())
	some := limit - d.pageSize()/8 // the rest is for topics that do not always fail
	due := &d.troubles.due
	for len(*due) > 0 && len(offsets) < limit {
		first := (*due)[0]
		t := first.of
		if t.parked || t.busy || !t.until.Equal(first.until) || d.troubles.first(t.key) != t {
			heap.Pop(due)
			continue
		}
		if left := first.until.Sub(now); left > 0 {
			*wait = min(*wait, left)
			break
		}
		heap.Pop(due)
		if leaving, held := d.shards[t.shard]; leaving || !held {
			continue
		}
		if topic := d.topics[t.topic]; topic != nil && topic.dead && len(offsets) >= max(1, some) {
			d.troubles.postpone(t, now.Add(10*firstBackoff))
			continue
		}
		if _, known := d.lanes.known[t.offset]; known {
			// The broker has it still, from an earlier session.
			d.troubles.postpone(t, now.Add(firstBackoff))
			continue
		}
		t.busy = true
		offsets = append(offsets, t.offset)
	}
	return offsets
}

// finishDue sends again what was read again. What is no longer there has been deleted or parked by somebody.
func (d *delivery) finishDue(t *trip) {
	if len(t.due) == 0 {
		return
	}
	if len(t.again) > 0 {
		d.retryMean = meanSize(t.again)
	}
	for _, row := range t.again {
		trouble := d.troubles.byOffset[row.offset]
		if trouble == nil || !trouble.is(row) {
			continue
		}
		if leaving, held := d.shards[row.shard]; leaving || !held || d.closing || d.troubles.first(row.key) != trouble {
			trouble.busy = false
			continue
		}
		row.trouble = trouble
		d.lanes.admit(row)
	}
	for _, offset := range t.due {
		trouble := d.troubles.byOffset[offset]
		if trouble == nil || !trouble.busy {
			continue
		}
		switch row := d.lanes.known[offset]; {
		case t.dueCut && offset > t.again[len(t.again)-1].offset:
			trouble.busy = false
			d.troubles.postpone(trouble, trouble.until)
		case row == nil || !trouble.is(row):
			d.forget(trouble)
		}
	}
}

// reconcile takes over what the table says of a message that had trouble: from the relay that had the shard before, or
// from a person who had it retried.
func (d *delivery) reconcile(found *trouble, noted map[int64]bool, now time.Time) {
	if _, held := d.shards[found.shard]; !held {
		return
	}
	t := d.troubles.byOffset[found.offset]
	if t != nil && (t.uuid != found.uuid || t.key != found.key) {
		d.forget(t)
		t = nil
	}
	switch {
	case t == nil:
		if row := d.lanes.known[found.offset]; row != nil && row.uuid == found.uuid && (found.parked || row.passed) {
			return
		}
		if !found.parked {
			d.unparked++
			d.troubles.postpone(found, found.until)
		}
		d.troubles.add(found, !found.parked || !d.relay.config.PassParked)
		if lane := d.lanes.byKey[found.key]; lane != nil && found.holds {
			d.troubles.dropped(d.lanes.clear(lane, found.offset), now)
		}
	case t.parked && !found.parked && !noted[t.offset]:
		t.parked, t.attempts, t.busy = false, found.attempts, false
		t.backoff.reset()
		d.unparked++
		d.troubles.hold(t)
		d.troubles.postpone(t, now)
	}
}

// missing finds the messages that are gone though this relay has not sent them: somebody has discarded them.
func (d *delivery) missing(e *errand, noted map[int64]bool) {
	there := make(map[int64]bool, len(e.troubles))
	for _, t := range e.troubles {
		there[t.offset] = true
	}
	for _, t := range d.troubles.byOffset {
		if !there[t.offset] && !t.busy && !noted[t.offset] {
			d.forget(t)
		}
	}
}

// noted are the messages of which the table does not know yet what has become.
func (d *delivery) noted() map[int64]bool {
	noted := make(map[int64]bool, len(d.notes)+len(d.passed.notes))
	for _, n := range d.notes {
		noted[n.row.offset] = true
	}
	for offset := range d.passed.notes {
		noted[offset] = true
	}
	return noted
}

// took notes that the broker has a message.
func (d *delivery) took(row *pending, now time.Time) {
	d.accepted++
	delete(d.passed.notes, row.offset)
	d.trust(row.topic, now)
	if len(d.taken) == 0 {
		d.nextFlush = now.Add(flushInterval)
	}
	d.taken = append(d.taken, row)
}
