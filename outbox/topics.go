package outbox

import (
	"container/heap"
	"time"
)

// topic is one that fails, or hangs. Its new messages are held back, all but one now and then that tells whether it still does; so
// are those behind them in their keys. What goes to other topics is not.
type topic struct {
	failures  int // in a row
	dead      bool
	stuck     bool // its calls hang in many workers, and it is dead until they return
	probing   bool // the broker has such a message
	nextProbe time.Time
	aside     int // keys
}

const (
	manyFailures  = 64 // of a topic, in a row
	probeInterval = 100 * time.Millisecond
)

// suspect notes a failure. When many messages have failed in a row whatever their topics, the broker seems to be down,
// and one more failure is enough for a topic.
func (d *delivery) suspect(name string, now time.Time) {
	d.inARow++
	t := d.topics[name]
	if t == nil {
		t = new(topic)
		d.topics[name] = t
	}
	t.failures++
	if t.failures >= manyFailures || d.inARow >= manyFailures {
		d.kill(name, t, now)
	}
}

func (d *delivery) kill(name string, t *topic, now time.Time) {
	if !t.dead {
		t.dead, t.nextProbe = true, now.Add(probeInterval)
		d.lanes.holdTopic(name)
	}
}

// trust notes that the broker has taken a message.
func (d *delivery) trust(name string, now time.Time) {
	back := d.inARow >= manyFailures
	d.inARow = 0
	t := d.topics[name]
	if back || t != nil && t.dead {
		d.relieve(name, now)
	}
	if t != nil {
		d.revive(name, t)
	}
	if !back {
		return
	}
	for other, t := range d.topics {
		if t.failures < manyFailures {
			d.revive(other, t)
		}
	}
}

func (d *delivery) revive(name string, t *topic) {
	t.failures = 0
	if t.stuck {
		return
	}
	if t.dead {
		t.dead = false
		d.lanes.releaseTopic(name)
		d.poke()
	}
	if t.aside == 0 {
		delete(d.topics, name)
	}
}

// relieve ends the waits that an outage has caused: of the topic, and of the broker.
func (d *delivery) relieve(name string, now time.Time) {
	for _, t := range d.troubles.byOffset {
		if !t.parked && !t.busy && (!t.counted || t.topic == name) {
			t.backoff.reset()
			d.troubles.postpone(t, now)
		}
	}
	d.poke()
}

// probeDue gives a topic of which a message is to be tried.
func (d *delivery) probeDue(now time.Time) string {
	for name, held := range d.lanes.held {
		if t := d.topics[name]; len(*held) > 0 && !t.probing && !now.Before(t.nextProbe) {
			return name
		}
	}
	return ""
}

// probe takes a message of such a topic.
func (d *delivery) probe(rows []*pending, now time.Time) []*pending {
	name := d.probeDue(now)
	if name == "" {
		return rows
	}
	t, lane := d.topics[name], (*d.lanes.held[name])[0]
	t.probing, t.nextProbe = true, now.Add(probeInterval)
	heap.Remove(lane.in, lane.index)
	lane.queue[0].probe = true
	return append(rows, d.lanes.take(lane))
}

// nextProbe tells when there is something for probe.
func (d *delivery) nextProbe() (at time.Time, any bool) {
	for name, held := range d.lanes.held {
		if t := d.topics[name]; len(*held) > 0 && !t.probing && (!any || t.nextProbe.Before(at)) {
			at, any = t.nextProbe, true
		}
	}
	return at, any
}
