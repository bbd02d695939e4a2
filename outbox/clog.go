package outbox

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Memory is bounded, and may fill with messages that cannot be sent: those of a key whose message the broker takes long
// for, or of a topic that fails. They are left to the table then, so that what comes behind them can be read.

// clogPatience is how long memory may be full of them.
const clogPatience = 100 * time.Millisecond

// aside is a key of which nothing is in memory from an offset on, while the topic of its next message fails.
type aside struct {
	offset int64
	shard  int
	topic  string
}

// maxAside bounds the memory that they take.
const maxAside = 100_000

// unclog looks whether memory is full though there are workers without work.
func (d *delivery) unclog(now time.Time, wait *time.Duration) {
	busy := d.lanes.sending - d.lanes.retrying
	if !d.full() || len(d.lanes.fresh) > 0 || busy >= d.maxActive() {
		d.clogged = time.Time{}
		return
	}
	if d.clogged.IsZero() {
		d.clogged = now
	}
	if left := clogPatience - now.Sub(d.clogged); left > 0 {
		*wait = min(*wait, left)
		return
	}
	d.clogged = time.Time{}
	*wait = min(*wait, clogPatience)
	length := d.laneLength()
	for _, lane := range d.lanes.byKey {
		d.troubles.dropped(d.lanes.trim(lane, length), now)
	}
	for _, lane := range d.lanes.byKey {
		if lane.busy && d.full() {
			d.troubles.dropped(d.lanes.strip(lane), now)
		}
	}
	if d.full() {
		d.setAside(now)
	}
	d.asked = true
}

// setAside leaves to the table what is held back, but for some to try.
func (d *delivery) setAside(now time.Time) {
	for name, held := range d.lanes.held {
		// As the topic is given a message ten times a second, they last a while: the others are read again after that.
		keep := max(1, d.relay.config.BatchSize/4/len(d.lanes.held))
		bytes := memoryBytes / 4 / len(d.lanes.held)
		lanes := slices.Clone(*held)
		slices.SortFunc(lanes, func(a, b *lane) int { return cmp.Compare(a.queue[0].offset, b.queue[0].offset) })
		for i, lane := range lanes {
			if bytes -= len(lane.queue[0].payload); i == 0 || i < keep && bytes >= 0 {
				d.troubles.dropped(d.lanes.trim(lane, 1), now)
			} else if len(d.aside) < maxAside {
				d.putAside(lane.queue[0], d.topics[name])
				d.troubles.dropped(d.lanes.clear(lane, math.MinInt64), now)
			}
		}
	}
}

func (d *delivery) putAside(first *pending, t *topic) {
	if _, twice := d.aside[first.key]; twice {
		d.takeBack(first.key)
	}
	d.aside[first.key] = aside{first.offset, first.shard, first.topic}
	t.aside++
}

// takeBack ends that for a key: from its offset on, the table is to be read again.
func (d *delivery) takeBack(key string) {
	a := d.aside[key]
	delete(d.aside, key)
	t := d.topics[a.topic]
	if t.aside--; t.aside == 0 && t.failures == 0 && !t.stuck {
		delete(d.topics, a.topic)
	}
}

// recover reads again what was set aside, when its topic does not fail any more or there is nothing left to try of it.
// It lowers the floor, so no trip may be under way.
func (d *delivery) recover() {
	if d.unparked == 0 {
		// Nothing waits to be tried again: those that failed are parked or gone.
		d.inARow = 0
		for name, t := range d.topics {
			d.revive(name, t)
		}
	}
	if len(d.aside) == 0 {
		return
	}
	again := make(map[string]bool)
	for name, t := range d.topics {
		if held := d.lanes.held[name]; t.aside > 0 && (held == nil || len(*held) == 0 && !t.probing) {
			again[name] = true
		}
	}
	if len(again) == 0 {
		return
	}
	for key, a := range d.aside {
		if again[a.topic] {
			d.takeBack(key)
			d.floor.back(a.offset - 1)
		}
	}
	d.asked = true
}

// mustWait tells whether a row that was read belongs behind one that is not to be sent now. It stays in the table, and is
// read again when that one is gone.
func (d *delivery) mustWait(row *pending) bool {
	if first := d.troubles.first(row.key); first != nil && row.offset >= first.offset {
		return true
	}
	if old := d.hidden[row.key]; old != nil && row.offset >= old.offset {
		return true
	}
	if len(d.aside) > 0 {
		if a, ok := d.aside[row.key]; ok && row.offset >= a.offset {
			return true
		}
		// The topic has as much in memory as it may.
		t := d.topics[row.topic]
		if t != nil && t.dead && t.aside > 0 && d.lanes.byKey[row.key] == nil && len(d.aside) < maxAside {
			d.putAside(row, t)
			return true
		}
	}
	return false
}

// short tells whether a lane that was cut has little left in memory, and can use more.
func (d *delivery) short(lane *lane) bool {
	return lane.cut && !lane.bare && len(lane.queue) <= d.laneLength()/2 && (lane.in == nil || lane.in == &d.lanes.fresh)
}

// maxRefills are made in one trip, each by a query of its own.
const maxRefills = 32

// refills asks for more of such lanes.
func (d *delivery) refills() (all []*refill) {
	for _, lane := range d.lanes.cut {
		if len(all) == maxRefills {
			break
		}
		if first := d.troubles.first(lane.key); d.short(lane) && (first == nil || first.offset > lane.rest) {
			all = append(all, &refill{lane: lane, rest: lane.rest, limit: d.laneLength(), bytes: laneBytes(d.relay.config)})
		}
	}
	return all
}

// finishRefills lets lanes go on. The fetches that left their rows out were earlier than what is read here, so that all
// below the floor is in it: a lane of which this is the rest has all that the floor has passed.
func (d *delivery) finishRefills(t *trip) {
	for _, r := range t.refills {
		if r.lane != d.lanes.cut[r.lane.key] || r.lane.rest != r.rest || d.closing {
			continue // it was given up meanwhile
		}
		whole := len(r.rows) < r.limit && !r.cut
		for _, row := range r.rows {
			if first := d.troubles.first(row.key); first != nil && row.offset >= first.offset {
				whole = true // what is behind that one is read when it is gone
				break
			}
			if known := d.lanes.known[row.offset]; known == nil {
				d.lanes.admit(row)
			} else if d.hides(known, row) {
				whole = true
				break
			}
			r.lane.rest = row.offset + 1
		}
		if whole {
			d.lanes.whole(r.lane)
		}
		d.lanes.settle(r.lane)
	}
}
