package outbox

import (
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// call is what one worker has with the broker. Publish has no context: nothing can end a call that hangs, and it keeps its
// key. It shall not keep the others.
type call struct {
	began time.Time
	rows  []*pending
}

// stuckAfter is when a call counts as one that hangs.
const stuckAfter = 10 * time.Second

// watchCalls has another worker stand in for each that hangs, up to as many again, and holds back the topics that have half
// of the workers hang: they would take those too.
func (d *delivery) watchCalls(now time.Time) {
	stuck, retries, byTopic := 0, 0, make(map[string]int)
	for c := range d.calls {
		if len(c.rows) == 0 || now.Sub(c.began) < stuckAfter {
			continue
		}
		stuck++
		topics := make(map[string]bool)
		for _, row := range c.rows {
			if row.trouble != nil || row.probe {
				retries++
			}
			topics[row.topic] = true
		}
		for topic := range topics {
			byTopic[topic]++
		}
	}
	workers := d.relay.config.Concurrency
	if d.batches != nil {
		workers = 1
	} else {
		d.standIns = min(stuck, workers)
		d.stoodFor = min(retries, d.standIns)
		d.holdStuck(byTopic, now)
	}
	switch {
	case stuck < workers:
		d.allStuck = false
	case !d.allStuck:
		d.allStuck = true
		names := slices.Sorted(maps.Keys(byTopic))
		d.relay.logger.Error("The broker's Publish hangs in all workers of the outbox relay, give it a timeout", nil, watermill.LogFields{
			"topics": names[:min(10, len(names))], "calls": stuck, "after": stuckAfter,
		})
	}
}

func (d *delivery) holdStuck(calls map[string]int, now time.Time) {
	half := max(1, d.relay.config.Concurrency/2)
	for name, t := range d.topics {
		if t.stuck && calls[name] < half {
			t.stuck = false
			if t.failures < manyFailures {
				d.revive(name, t)
			}
		}
	}
	for name, n := range calls {
		if n < half {
			continue
		}
		t := d.topics[name]
		if t == nil {
			t = new(topic)
			d.topics[name] = t
		}
		t.stuck = true
		d.kill(name, t, now)
	}
}
