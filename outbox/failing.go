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
	if _, held := d.shards[row.shard]; !held {
		return // the session was lost meanwhile, and the shard is another relay's
	}
	d.inARow++
	t := d.troubles.byOffset[row.offset]
	if t == nil {
		t = &trouble{offset: row.offset, uuid: row.uuid, key: row.key, shard: row.shard, taken: row.began}
		t.backoff.first = firstBackoff
		d.unparked++
		d.troubles.add(t, true)
	}
	// When the broker is down, no message is to blame.
	t.counted = permanent(fault) || d.accepted > t.taken || d.alone()
	if t.counted {
		t.attempts++
	}
	t.taken, t.busy = d.accepted, false
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
	heap.Push(&d.due, dueEntry{t.until, t})
	fields["wait"] = wait
	d.relay.logger.Error("Could not publish from outbox, the message's key waits", fault, fields)
}

// alone tells whether nothing but the message at hand waits to be sent, which then cannot be compared with any other.
func (d *delivery) alone() bool {
	return d.lanes.waiting == 0 && d.lanes.sending == 0 && d.unparked <= 1 && !d.more
}

// park leaves a message to a person. Where its key may go on, it does so when the table knows.
func (d *delivery) park(t *trouble) {
	t.parked = true
	d.unparked--
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

// dueNow gives the messages whose time has come, to be read again; else it shortens wait.
func (d *delivery) dueNow(now time.Time, wait *time.Duration) []int64 {
	var offsets []int64
	for len(d.due) > 0 && len(offsets) < d.pageSize() {
		first := d.due[0]
		t := first.of
		if t.parked || t.busy || !t.until.Equal(first.until) {
			heap.Pop(&d.due)
			continue
		}
		if left := first.until.Sub(now); left > 0 {
			*wait = min(*wait, left)
			break
		}
		heap.Pop(&d.due)
		if leaving, held := d.shards[t.shard]; leaving || !held {
			continue
		}
		if _, known := d.lanes.known[t.offset]; known {
			// The broker has it still, from an earlier session.
			d.postpone(t, now.Add(firstBackoff))
			continue
		}
		t.busy = true
		offsets = append(offsets, t.offset)
	}
	return offsets
}

func (d *delivery) postpone(t *trouble, until time.Time) {
	t.until = until
	heap.Push(&d.due, dueEntry{until, t})
}

// finishDue sends again what was read again. What is no longer there has been deleted or parked by somebody.
func (d *delivery) finishDue(t *trip) {
	if len(t.due) == 0 {
		return
	}
	for _, row := range t.again {
		trouble := d.troubles.byOffset[row.offset]
		if trouble == nil || trouble.uuid != row.uuid {
			continue
		}
		if leaving, held := d.shards[row.shard]; leaving || !held || d.closing {
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
		if row := d.lanes.known[offset]; row == nil || row.uuid != trouble.uuid {
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
	switch {
	case t == nil:
		if _, known := d.lanes.known[found.offset]; known && found.parked {
			return
		}
		if !found.parked {
			d.unparked++
			heap.Push(&d.due, dueEntry{found.until, found})
		}
		d.troubles.add(found, !found.parked || !d.relay.config.PassParked)
		if found.holds {
			d.lanes.dropKey(found.key)
		}
	case t.parked && !found.parked && !noted[t.offset]:
		t.parked, t.attempts, t.busy = false, found.attempts, false
		t.backoff.reset()
		d.unparked++
		d.troubles.hold(t)
		d.postpone(t, now)
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
	noted := make(map[int64]bool, len(d.notes))
	for _, n := range d.notes {
		noted[n.row.offset] = true
	}
	return noted
}

// took notes that the broker has a message.
func (d *delivery) took(row *pending, now time.Time) {
	if d.outage() {
		d.relieve(now)
	}
	d.accepted++
	d.inARow = 0
	if len(d.taken) == 0 {
		d.nextFlush = now.Add(flushInterval)
	}
	d.taken = append(d.taken, row)
}

// manyFailures in a row, and none taken, mean that the broker is down.
const manyFailures = 64

// outage tells whether the broker seems to be down: the messages that have failed are tried again in their time, and of
// the others one now and then.
func (d *delivery) outage() bool { return d.inARow >= manyFailures && d.unparked > 0 }

// relieve ends the waits that an outage has caused.
func (d *delivery) relieve(now time.Time) {
	for _, t := range d.troubles.byOffset {
		if !t.parked && !t.busy && !t.counted {
			t.backoff.reset()
			d.postpone(t, now)
		}
	}
}
