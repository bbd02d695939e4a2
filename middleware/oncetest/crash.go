package oncetest

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Crash is Config.Crash with the zero Config.
func Crash(t testing.TB, setup Setup, events []*message.Message) {
	t.Helper()
	Config{}.Crash(t, setup, events)
}

// Crash proves that an event whose handling is cut short, and that is delivered again, is handled as if nothing had been. It lets
// each delivery die at each of its crash points, one in a run:
//
//   - before a request reaches PostgreSQL, for each of them: before the claim, before the handler's statements, before COMMIT
//   - when PostgreSQL has done what was asked, and before the handler hears of it: after COMMIT too
//   - when the handler has returned, before its messages are published, and before the ack
//   - in a relay, when the broker has a message and its row in the outbox is not yet deleted (outboxes of ours)
//
// The requests are found on the wire, whatever the driver. A process that dies says no more to the server or the broker, whatever its code
// goes on to do. Where an answer is lost, it is also tried with a process that lives on and hears of a broken connection: what it acks
// then does not come again.
//
// The rows, and the messages that have left, must end as those of an undisturbed run. Columns that are other in every run do not
// count; a message that left twice under one UUID counts once, since some time it must. All crash points are tried, or a sample of
// Config.Runs.
func (c Config) Crash(t testing.TB, setup Setup, events []*message.Message) {
	t.Helper()
	p, done := c.begin(t, "Crash", setup, events)
	defer done()
	compare := func(a, b *state) []string { return p.compare(a, b, true) }
	if !p.steady(p.all(), compare) {
		return
	}
	for _, point := range sample(p.crashPoints(), p.config.Runs, p.random) {
		try := func(order []int) *finding { return p.crash(order, point) }
		if f := try(p.all()); f != nil {
			order, f := shrink(p.all(), f, try)
			p.report(f.what, f, p.crashed(order, point))
			return
		}
	}
	p.crashRelay()
}

// sample takes n of all, in their order.
func sample[T any](all []T, n int, random *rand.Rand) []T {
	if len(all) <= n {
		return all
	}
	places := random.Perm(len(all))[:n]
	slices.Sort(places)
	taken := make([]T, n)
	for i, place := range places {
		taken[i] = all[place]
	}
	return taken
}

// crashPoint is where one delivery is cut short.
type crashPoint struct {
	event   int
	where   place
	request request // for those on the wire
	nth     int     // of the requests that begin alike
}

type place int

const (
	requestLost place = iota
	answerLost
	answerLostAlive // and the process lives on
	beforePublish
	beforeAck
)

func (c crashPoint) String() string {
	sql := brief(c.request.sql)
	switch c.where {
	case requestLost:
		return "the process dies before PostgreSQL gets: " + sql
	case answerLost:
		return "the process dies when PostgreSQL has done: " + sql
	case answerLostAlive:
		return "the connection breaks when PostgreSQL has done: " + sql
	case beforePublish:
		return "the process dies when the handler has returned, before its messages are published"
	default:
		return "the process dies before the ack"
	}
}

// crashPoints finds them in an undisturbed run.
func (p *proof) crashPoints() (points []crashPoint) {
	p.t.Helper()
	p.run(true, func(r *run) *finding {
		for _, event := range p.all() {
			sent := r.wire.sent()
			r.wire.watch(nil)
			r.deliver(event, false)
			requests, nth := r.wire.seen(), map[string]int{}
			for i, q := range requests {
				at := crashPoint{event: event, request: q, nth: nth[q.head]}
				nth[q.head]++
				points = append(points, at.in(requestLost), at.in(answerLostAlive))
				// To die with the answer is to die before the next request, unless a message leaves in between.
				if i == len(requests)-1 || requests[i+1].sent > q.sent {
					points = append(points, at.in(answerLost))
				}
			}
			at := crashPoint{event: event}
			if r.wire.sent() > sent {
				points = append(points, at.in(beforePublish))
			}
			points = append(points, at.in(beforeAck))
		}
		return nil
	})
	return points
}

func (c crashPoint) in(where place) crashPoint {
	c.where = where
	return c
}

// crash delivers each event once, and one of them with a crash.
func (p *proof) crash(order []int, point crashPoint) *finding {
	p.t.Helper()
	if !slices.Contains(order, point.event) {
		return nil
	}
	calm, f := p.undisturbed(order)
	if f != nil {
		return f
	}
	return p.run(true, func(r *run) *finding {
		for _, event := range order {
			again := event == point.event
			if again {
				acked, f := r.crash(point)
				if f != nil {
					return f
				}
				if acked {
					continue
				}
			}
			if f := r.until(event, again); f != nil {
				return f
			}
		}
		if changes := p.compare(calm, r.look(), true); len(changes) > 0 {
			return &finding{kind: "crash", changes: changes, what: "a crash and the redelivery lead to another state than one delivery"}
		}
		return nil
	})
}

// crash is a delivery that is cut short. It tells whether the event was acked, and so does not come again.
func (r *run) crash(point crashPoint) (acked bool, f *finding) {
	r.t.Helper()
	c := &cut{head: point.request.head, nth: point.nth, answer: point.where != requestLost, dies: point.where != answerLostAlive}
	c.onDeath = func() {
		r.broker.setDown(true)
		r.end()
	}
	if point.where < beforePublish {
		r.wire.watch(c)
	}
	v := visit{unpublished: point.where == beforePublish}
	res := r.process.deliver(r.ctx, r.proof.message(point.event, false), v, r.proof.config.Timeout)
	r.wire.watch(nil)
	if res.expired {
		return false, &finding{kind: "hang", what: res.misuse + " after " + point.String()}
	}
	if point.where < beforePublish && !c.dies {
		return res.acked, nil
	}
	r.die()
	return false, nil
}

// die ends what is left of the process, and starts it again.
func (r *run) die() {
	r.t.Helper()
	r.broker.setDown(true)
	r.end()
	r.wire.proxy.Down(true)
	r.wire.proxy.Cut()
	r.left()
	r.wire.revive()
	r.db.Pool.Reset()
	r.broker.setDown(false)
	r.restart()
}

func (p *proof) crashed(order []int, point crashPoint) (sequence []string) {
	for _, event := range order {
		if event != point.event {
			sequence = append(sequence, p.name(event))
			continue
		}
		sequence = append(sequence, p.name(event)+": "+point.String())
		if point.where != answerLostAlive {
			sequence = append(sequence, p.name(event)+" again")
		} else {
			sequence = append(sequence, p.name(event)+" again, if it was refused")
		}
	}
	return sequence
}
