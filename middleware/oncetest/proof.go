package oncetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

// proof is one call of Replay, Crash and the others.
type proof struct {
	t         testing.TB
	title     string
	config    Config
	setup     Setup
	events    []*message.Message
	server    *pgserver.Server
	databases *databases
	random    *rand.Rand
	emptied   []string // tables that Amnesia empties
	runs      int
	calm      map[string]*state // what undisturbed runs ended in
}

// finding is what a run has shown.
type finding struct {
	kind    string   // the same for what is the same fault
	what    string   // in a sentence
	changes []string // rows and messages
	at      int      // the delivery that showed it
}

// begin checks what a proof is given, and makes the template of its databases. done is to be deferred.
func (c Config) begin(t testing.TB, title string, setup Setup, events []*message.Message) (p *proof, done func()) {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatalf("oncetest: config: %v", err)
	}
	switch {
	case setup == nil:
		t.Fatalf("oncetest: Setup is nil")
	case len(events) == 0:
		t.Fatalf("oncetest: there are no events")
	case slices.Contains(events, nil):
		t.Fatalf("oncetest: an event is nil")
	}
	c.setDefaults()
	p = &proof{
		t: t, title: title, config: c, setup: setup, events: events,
		random: rand.New(rand.NewPCG(c.Seed, 0)), calm: map[string]*state{},
	}
	var blank string
	p.server, blank = sharedServer(t)
	p.databases = &databases{t: t, server: p.server, template: blank}
	if c.Schema != nil {
		p.databases.template, p.databases.own = p.schema(blank), true
	}
	p.databases.make()
	return p, p.databases.close
}

// schema makes the database that those of the runs are copies of.
func (p *proof) schema(blank string) string {
	p.t.Helper()
	name := newDatabase(p.t, p.server, blank)
	if err := p.config.Schema(context.WithoutCancel(p.t.Context()), p.server.URL(name)); err != nil {
		dropDatabase(p.t, p.server, name)
		p.t.Fatalf("oncetest: Schema: %v", err)
	}
	return name
}

// undisturbed is what a run ends in that delivers each event once, in the order given. It is run once for each order.
func (p *proof) undisturbed(order []int) (*state, *finding) {
	p.t.Helper()
	key := fmt.Sprint(order)
	if s := p.calm[key]; s != nil {
		return s, nil
	}
	s, f := p.deliver(order)
	if f == nil {
		p.calm[key] = s
	}
	return s, f
}

func (p *proof) deliver(order []int) (s *state, f *finding) {
	p.t.Helper()
	f = p.run(false, func(r *run) *finding {
		before := r.look()
		for i, event := range order {
			if f := r.once(event, false); f != nil {
				f.at = i
				return f
			}
		}
		s = r.look()
		s.idle = len(repeated(before, s, false)) == 0
		return nil
	})
	return s, f
}

// sound is the undisturbed run of all events: it must succeed, and leave something to compare.
func (p *proof) sound(order []int) bool {
	p.t.Helper()
	s, f := p.undisturbed(order)
	if f != nil {
		order, f = shrink(order[:f.at+1], f, func(part []int) *finding {
			_, f := p.undisturbed(part)
			return f
		})
		p.report("in an undisturbed run, "+f.what, f, p.deliveries(order))
		return false
	}
	if s.idle {
		p.t.Errorf("oncetest.%s: the events changed no row and no message left, so nothing is proven", p.title)
		return false
	}
	return true
}

// steady tells whether undisturbed runs end alike, as far as it counts: otherwise nothing can be told from a comparison.
func (p *proof) steady(order []int, compare func(a, b *state) []string) bool {
	p.t.Helper()
	if !p.sound(order) {
		return false
	}
	try := func(order []int) *finding {
		first, f := p.undisturbed(order)
		if f != nil {
			return f
		}
		second, f := p.deliver(order)
		if f != nil {
			return f
		}
		if changes := compare(first, second); len(changes) > 0 {
			return &finding{kind: "unsteady", changes: changes, what: "two undisturbed runs end in different states: " +
				"name what is drawn or comes from the clock in IgnoreColumns, or set Message"}
		}
		return nil
	}
	f := try(order)
	if f != nil {
		order, f = shrink(order, f, try)
		p.report(f.what, f, p.deliveries(order))
	}
	return f == nil
}

// all is every event, in the order given.
func (p *proof) all() []int {
	order := make([]int, len(p.events))
	for i := range order {
		order[i] = i
	}
	return order
}

// deliveries names what a run delivered.
func (p *proof) deliveries(order []int) []string {
	lines, seen := make([]string, len(order)), map[int]bool{}
	for i, event := range order {
		lines[i] = p.name(event)
		if seen[event] {
			lines[i] += " again"
		}
		seen[event] = true
	}
	return lines
}

// report fails the test.
func (p *proof) report(verdict string, f *finding, sequence []string) {
	p.t.Helper()
	p.t.Errorf("%s", p.text(verdict, f, sequence))
}

func (p *proof) text(verdict string, f *finding, sequence []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "oncetest.%s: %s\n", p.title, verdict)
	fmt.Fprintf(&b, "the shortest sequence found that shows it (events given: %d):\n", len(p.events))
	for i, line := range sequence {
		fmt.Fprintf(&b, "  %d. %s\n", i+1, line)
	}
	if len(f.changes) > 0 {
		b.WriteString("what differs:\n")
		for i, change := range f.changes {
			if i == maxChanges {
				fmt.Fprintf(&b, "  and %d more\n", len(f.changes)-i)
				break
			}
			fmt.Fprintf(&b, "  %s\n", change)
		}
	}
	fmt.Fprintf(&b, "seed %d, %d runs", p.config.Seed, p.runs)
	return b.String()
}

// maxChanges keeps a report readable.
const maxChanges = 20
