package oncetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Concurrent is Config.Concurrent with the zero Config.
func Concurrent(t testing.TB, setup Setup, events []*message.Message) {
	t.Helper()
	Config{}.Concurrent(t, setup, events)
}

// Concurrent proves that deliveries of one event at the same time are as one. Each event, in turn, is delivered Config.Copies times at
// once; a proxy before the server has them take their statements in step, so that what they look up they all look up before any
// of them writes. Copies that are refused come again. The rows, and the messages that have left, must be those of one delivery
// each; columns that are other in every run do not count.
func (c Config) Concurrent(t testing.TB, setup Setup, events []*message.Message) {
	t.Helper()
	p, done := c.begin(t, "Concurrent", setup, events)
	defer done()
	compare := func(a, b *state) []string { return p.compare(a, b, c.Resends) }
	if !p.steady(p.all(), compare) {
		return
	}
	if f := p.concurrent(p.all()); f != nil {
		order, f := shrink(p.all(), f, p.concurrent)
		sequence := p.deliveries(order)
		for i := range sequence {
			sequence[i] += fmt.Sprintf(", %d times at once", p.config.Copies)
		}
		p.report(f.what, f, sequence)
	}
}

func (p *proof) concurrent(order []int) *finding {
	p.t.Helper()
	calm, f := p.undisturbed(order)
	if f != nil {
		return f
	}
	return p.run(true, func(r *run) *finding {
		for _, event := range order {
			if f := r.atOnce(event); f != nil {
				return f
			}
		}
		if changes := p.compare(calm, r.look(), p.config.Resends); len(changes) > 0 {
			return &finding{kind: "concurrent", changes: changes, what: "deliveries at the same time lead to another state than one"}
		}
		return nil
	})
}

// atOnce delivers copies of an event in step, and then those again that were refused.
func (r *run) atOnce(event int) *finding {
	r.t.Helper()
	n := r.proof.config.Copies
	msgs, results := make([]*message.Message, n), make([]result, n)
	for i := range n {
		msgs[i] = r.proof.message(event, i > 0)
	}
	gate, end := r.wire.step(n)
	var deliveries sync.WaitGroup
	for i := range n {
		deliveries.Go(func() {
			defer gate.leave()
			results[i] = r.process.deliver(r.ctx, msgs[i], visit{}, r.proof.config.Timeout)
		})
	}
	deliveries.Wait()
	end()
	for _, res := range results {
		if res.misuse != "" {
			return r.refused(event, res)
		}
	}
	for _, res := range results {
		if !res.acked {
			if f := r.until(event, true); f != nil {
				return f
			}
		}
	}
	return nil
}
