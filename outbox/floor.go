package outbox

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// floor is the offset above which the relay reads. Reading from the beginning each time would be simplest, and walks the
// index entries of all that was sent before, as long as any snapshot in the cluster keeps them. Reading on from the last
// row seen would be wrong: a row may appear behind it, when a transaction commits that has drawn its offset earlier,
// and the rows of its key that come after it must not be sent before it.
//
// What is safe is an offset up to which nothing can appear any more. A transaction has its id before it draws an
// offset. So all that have drawn one up to that which the sequence gave last have ids below one that is taken after
// reading the sequence; and when none of these is running any more, what they wrote is visible.
//
// Transactions that run long, in whatever database of the cluster, would hold the floor where it is. They are
// remembered instead, each with the floor to go back to when it ends.
type floor struct {
	high int64
	file int64 // of the sequence
	mark mark
	late map[uint64]int64
	seen map[uint64]time.Time
}

// mark is known of an offset: every transaction that has drawn one up to it has an id below xid.
type mark struct {
	offset int64
	xid    uint64
}

// page is what one read above the floor tells about what there may be below its end.
type page struct {
	file   int64    // of the sequence
	mark   mark     // taken before the read; no xid: nothing has been drawn beyond the floor
	before snapshot // taken between mark and the read
	after  snapshot // taken after the read
	end    int64    // the last row read, where there may be more
}

// ground is below all offsets.
const ground = math.MinInt64

// lateAfter is how long a transaction may hold the floor.
const lateAfter = time.Second

func newFloor() floor {
	return floor{high: ground, late: make(map[uint64]int64), seen: make(map[uint64]time.Time)}
}

// reset forgets all: what is below the floor is not known any more.
func (f *floor) reset() {
	seen, file := f.seen, f.file
	*f = newFloor()
	f.seen, f.file = seen, file
}

// restarted tells whether the sequence has another file than before: it may have begun anew, and its offsets are other
// messages' now.
func (f *floor) restarted(file int64) bool {
	known := f.file
	f.file = file
	if known == 0 || known == file {
		return false
	}
	f.reset()
	return true
}

// back lowers the floor to where rows have been passed over.
func (f *floor) back(to int64) { f.high = min(f.high, to) }

// observe raises the floor as far as a page allows that was read above it: so it must not have been lowered since. It
// gives false where the page must not be used: a remembered
// transaction has ended, and rows of the page may belong behind rows that it has written below the floor.
func (f *floor) observe(p page, now time.Time) bool {
	usable := true
	for xid, low := range f.late {
		if !p.after.isRunning(xid) {
			f.back(low)
			delete(f.late, xid)
			usable = false
		}
	}
	if !usable {
		return false
	}
	if p.mark.offset < f.high {
		// The sequence was set back, and gives offsets below the floor.
		f.reset()
		return false
	}
	if p.mark.xid == 0 {
		return true
	}
	f.watch(p.before, now)
	switch {
	case f.passes(p.mark, p.before, now):
		f.raise(p, p.mark)
		f.mark = mark{}
	case f.mark.xid == 0:
		f.mark = p.mark
	case f.passes(f.mark, p.before, now):
		f.raise(p, f.mark)
		f.mark = p.mark
	}
	return true
}

// watch notes since when transactions are running.
func (f *floor) watch(s snapshot, now time.Time) {
	for xid := range f.seen {
		if !s.isRunning(xid) {
			delete(f.seen, xid)
		}
	}
	for _, xid := range s.running {
		if _, known := f.seen[xid]; !known {
			f.seen[xid] = now
		}
	}
}

// passes tells whether none of the transactions below the mark is running but those that have long been.
func (f *floor) passes(m mark, s snapshot, now time.Time) bool {
	if s.xmax < m.xid {
		return false // what a snapshot says ends at xmax
	}
	for _, xid := range s.running {
		if xid >= m.xid {
			continue
		}
		if _, remembered := f.late[xid]; !remembered && now.Sub(f.seen[xid]) < lateAfter {
			return false
		}
	}
	return true
}

// raise remembers the running transactions that may have written between the old floor and the new one.
func (f *floor) raise(p page, m mark) {
	to := min(m.offset, p.end)
	if to <= f.high {
		return
	}
	for _, xid := range p.before.running {
		if _, remembered := f.late[xid]; xid < m.xid && !remembered {
			f.late[xid] = f.high
		}
	}
	f.high = to
}

// snapshot is PostgreSQL's pg_snapshot: which transactions had ended.
type snapshot struct {
	xmax    uint64   // those from here on had not
	running []uint64 // nor had these below it
}

func (s snapshot) isRunning(xid uint64) bool {
	if xid >= s.xmax {
		return true
	}
	for _, r := range s.running {
		if r == xid {
			return true
		}
	}
	return false
}

// parseSnapshot reads xmin:xmax:xip,xip.
func parseSnapshot(text string) (s snapshot, err error) {
	_, rest, ok := strings.Cut(text, ":")
	xmax, list, ok2 := strings.Cut(rest, ":")
	if !ok || !ok2 {
		return s, fmt.Errorf("%.64q is no snapshot", text)
	}
	if s.xmax, err = strconv.ParseUint(xmax, 10, 64); err != nil {
		return s, err
	}
	for list != "" {
		var xid string
		xid, list, _ = strings.Cut(list, ",")
		n, err := strconv.ParseUint(xid, 10, 64)
		if err != nil {
			return s, err
		}
		s.running = append(s.running, n)
	}
	return s, nil
}
