package oncetest

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Replay is Config.Replay with the zero Config.
func Replay(t testing.TB, setup Setup, events []*message.Message) {
	t.Helper()
	Config{}.Replay(t, setup, events)
}

// Replay proves that an event that comes again changes nothing. Each is delivered twice in a row, and once more after all others.
// No repeat may change a row of any table, not even a time of change, nor add or delete one, nor may a message leave.
func (c Config) Replay(t testing.TB, setup Setup, events []*message.Message) {
	t.Helper()
	p, done := c.begin(t, "Replay", setup, events)
	defer done()
	if !p.sound(p.all()) {
		return
	}
	var order []int
	for event := range events {
		order = append(order, event, event)
	}
	order = append(order, p.all()...)

	if f := p.replay(order); f != nil {
		order, f = shrink(order[:f.at+1], f, p.replay)
		p.report(f.what, f, p.deliveries(order))
	}
}

// replay delivers in the order given. Whatever it has delivered before must change nothing.
func (p *proof) replay(order []int) *finding {
	p.t.Helper()
	return p.run(false, func(r *run) *finding {
		seen := map[int]bool{}
		before := r.look()
		for i, event := range order {
			if f := r.once(event, seen[event]); f != nil {
				f.at = i
				return f
			}
			after := r.look()
			if changes := repeated(before, after, p.config.Resends); seen[event] && len(changes) > 0 {
				return &finding{
					kind: "repeat", at: i, changes: changes,
					what: fmt.Sprintf("%s changed something when it came again", p.name(event)),
				}
			}
			seen[event], before = true, after
		}
		return nil
	})
}
