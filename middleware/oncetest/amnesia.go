package oncetest

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Amnesia is Config.Amnesia with the zero Config.
func Amnesia(t testing.TB, setup Setup, events []*message.Message) (survived bool) {
	t.Helper()
	return Config{}.Amnesia(t, setup, events)
}

// Amnesia tells whether a handler is idempotent by itself, or only by the claims, which somebody may delete, or a restored database
// lack. It delivers all events, empties Config.Claims, and delivers all once more: nothing may change then, but that messages may
// leave again under their own UUIDs. If something does, Amnesia logs it and returns false; with Config.MustSurviveAmnesia it fails.
//
// What a process remembers by itself (dedupe.Config.Cache) is forgotten only with Config.Schema.
func (c Config) Amnesia(t testing.TB, setup Setup, events []*message.Message) (survived bool) {
	t.Helper()
	p, done := c.begin(t, "Amnesia", setup, events)
	defer done()
	p.emptied = p.config.Claims
	if len(p.emptied) == 0 {
		p.emptied = []string{"watermill_processed_events"}
	}
	if !p.sound(p.all()) {
		return false
	}
	f := p.amnesia(p.all())
	if f == nil {
		return true
	}
	order, f := shrink(p.all(), f, p.amnesia)
	sequence := append(p.deliveries(order), "the claims are emptied")
	for _, event := range order[:f.at+1] {
		sequence = append(sequence, p.name(event)+" again")
	}
	if f.kind != "repeat" || c.MustSurviveAmnesia {
		p.report(f.what, f, sequence)
	} else {
		t.Log(p.text(f.what, f, sequence))
	}
	return false
}

func (p *proof) amnesia(order []int) *finding {
	p.t.Helper()
	return p.run(false, func(r *run) *finding {
		for i, event := range order {
			if f := r.once(event, false); f != nil {
				f.at = i
				return f
			}
		}
		r.forget(p.emptied)
		r.restart()
		before := r.look()
		for i, event := range order {
			if f := r.once(event, true); f != nil {
				f.at = i
				return f
			}
			after := r.look()
			if changes := repeated(before, after, true); len(changes) > 0 {
				return &finding{
					kind: "repeat", at: i, changes: changes,
					what: fmt.Sprintf("the handler leans on its claims: without them %s changed something when it came again", p.name(event)),
				}
			}
			before = after
		}
		return nil
	})
}
