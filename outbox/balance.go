package outbox

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// planBalance gives back what is ready to be given back, and looks for more.
func (d *delivery) planBalance(now time.Time) *errand {
	e := &errand{reload: !now.Before(d.nextReload)}
	busy := d.busyShards()
	for shard, leaving := range d.shards {
		if !leaving {
			e.holding = append(e.holding, shard)
		} else if !busy[shard] {
			e.leave = append(e.leave, shard)
			delete(d.shards, shard)
		}
	}
	if len(e.leave) > 0 {
		for _, t := range d.troubles.byOffset {
			if _, held := d.shards[t.shard]; !held {
				d.removeTrouble(t)
			}
		}
		for key, a := range d.aside {
			if _, held := d.shards[a.shard]; !held {
				d.takeBack(key)
			}
		}
	}
	return e
}

func (d *delivery) finishBalance(e *errand, now time.Time) {
	d.lease = lease{e.began}
	d.nextBalance = now.Add(balanceInterval)
	if len(e.taken) > 0 {
		for _, shard := range e.taken {
			d.shards[shard] = false
		}
		d.floor.reset()
		d.asked = true
		d.relay.logger.Info("Outbox relay has taken shards", watermill.LogFields{"taken": len(e.taken), "shards": len(d.shards)})
	}
	noted := d.noted()
	if e.reload {
		d.nextReload = now.Add(max(balanceInterval, 50*e.took))
		d.missing(e, noted)
	}
	for _, t := range e.troubles {
		d.reconcile(t, noted, now)
	}
	for _, shard := range e.holding {
		if e.beyond <= 0 {
			break
		}
		e.beyond--
		d.shards[shard] = true
		d.lanes.drop(func(s int) bool { return s == shard })
	}
}

// drained tells whether there is a shard to be given back.
func (d *delivery) drained() bool {
	any := false
	for _, leaving := range d.shards {
		any = any || leaving
	}
	if !any {
		return false
	}
	busy := d.busyShards()
	for shard, leaving := range d.shards {
		if leaving && !busy[shard] {
			return true
		}
	}
	return false
}

func (d *delivery) busyShards() map[int]bool {
	busy := make(map[int]bool)
	for _, row := range d.lanes.known {
		busy[row.shard] = true
	}
	for _, n := range d.notes {
		busy[n.row.shard] = true
	}
	for _, n := range d.passed.notes {
		busy[n.row.shard] = true
	}
	return busy
}
