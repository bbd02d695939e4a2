package outbox

import "time"

// An offset may become another message's while the broker still has the one that was read under it: the table is emptied and
// its sequence begins anew, or a standby takes over that had not heard of it. What is in memory is known by its offset, so the
// new message cannot be there before the old one is gone. Its key waits for that, as what is behind it must not be first.

// startAnew is for a sequence that has begun anew: only what the broker has is still of interest. Which messages have had
// trouble is read before anything else.
func (d *delivery) startAnew(now time.Time) {
	d.lanes.drop(every)
	d.doubtOffsets()
	d.troubles, d.unparked = newTroubles(), 0
	d.asked, d.nextBalance, d.nextReload = true, now, now
}

// doubtOffsets notes that what is in memory may not be what the table has under its offsets.
func (d *delivery) doubtOffsets() {
	for _, row := range d.lanes.known {
		row.old = true
	}
}

// hides tells whether a row that was read cannot be in memory because of an old one.
func (d *delivery) hides(known, row *pending) bool {
	if !known.old || known.uuid == row.uuid {
		known.old = false
		return false
	}
	if first := d.hidden[row.key]; first == nil || row.offset < first.offset {
		d.hidden[row.key] = known
	}
	return true
}

// unhide lets keys go on whose rows are not hidden any more. It lowers the floor, so no trip may be under way.
func (d *delivery) unhide() {
	for key, old := range d.hidden {
		if d.lanes.known[old.offset] != old {
			delete(d.hidden, key)
			d.floor.back(old.offset - 1)
		}
	}
}
