package oncetest

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/watermill-once/internal/tcpproxy"
)

// run is one course of deliveries, on a database of its own.
type run struct {
	proof   *proof
	t       testing.TB
	observe *pgx.Conn // our own eyes, past the wire
	db      Database
	wire    *wire // nil: the handler talks to the server directly
	broker  *broker
	scope   *scope
	process *process
	ctx     context.Context // of the messages
	end     context.CancelFunc
}

// scope is the testing.TB of a Setup: its context ends, and what is to be cleaned up is, with a process and not with the test.
type scope struct {
	testing.TB
	ctx      context.Context
	end      context.CancelFunc
	cleanups []func()
}

func (s *scope) Cleanup(f func())         { s.cleanups = append(s.cleanups, f) }
func (s *scope) Context() context.Context { return s.ctx }

func (s *scope) clean() {
	s.end()
	for len(s.cleanups) > 0 {
		last := len(s.cleanups) - 1
		f := s.cleanups[last]
		s.cleanups = s.cleanups[:last]
		f()
	}
}

// run calls f with a fresh run. wired: with a proxy between handler and server.
func (p *proof) run(wired bool, f func(r *run) *finding) *finding {
	p.t.Helper()
	p.runs++
	name := p.databases.take()
	defer p.databases.drop(name)
	r := &run{proof: p, t: p.t, broker: &broker{}, observe: connect(p.t, p.server, name)}
	defer func() { _ = r.observe.Close(context.Background()) }()

	r.db = Database{URL: p.server.URL(name), Broker: r.broker}
	if wired {
		proxy, err := tcpproxy.Start(p.server.Addr())
		check(p.t, err)
		defer func() { _ = proxy.Close() }()
		r.wire = newWire(proxy, func() int { return len(r.broker.all()) })
		r.db.URL = through(p.t, r.db.URL, proxy)
	}
	r.db.Pool = newPool(p.t, r.db.URL)
	defer func() { closePool(p.t, r.db.Pool) }()
	r.start()
	defer r.stop()
	return f(r)
}

func through(t testing.TB, address string, proxy *tcpproxy.Proxy) string {
	t.Helper()
	u, err := url.Parse(address)
	check(t, err)
	u.Host = proxy.Addr()
	return u.String()
}

func (r *run) start() {
	r.t.Helper()
	r.scope = &scope{TB: r.t}
	r.scope.ctx, r.scope.end = context.WithCancel(context.WithoutCancel(r.t.Context()))
	started := false
	defer func() {
		if !started { // Setup has ended the test
			r.scope.clean()
		}
	}()
	handler := r.proof.setup(r.scope, r.db)
	if handler == nil {
		r.t.Fatalf("oncetest: Setup gave no handler")
	}
	r.process = startProcess(r.t, handler, r.broker)
	r.renew()
	started = true
}

// renew gives the messages to come another context.
func (r *run) renew() {
	r.ctx, r.end = context.WithCancel(context.WithoutCancel(r.t.Context()))
}

func (r *run) stop() {
	r.t.Helper()
	r.end()
	if p := r.process; p != nil { // nil where Setup has ended the test in a restart
		r.process = nil
		p.stop(r.t)
	}
	r.scope.clean()
}

// restart is a new process on the same database, where Setup can be called on one that has its tables.
func (r *run) restart() {
	r.t.Helper()
	if r.proof.config.Schema == nil {
		r.end()
		r.renew()
		return
	}
	r.stop()
	r.start()
}

// message is a delivery of an event: the first, or another one.
func (p *proof) message(event int, again bool) *message.Message {
	msg := p.events[event].Copy()
	msg.Payload = slices.Clone(msg.Payload) // handlers change messages
	if again {
		msg = p.config.Redeliver(msg)
		if msg == nil {
			p.t.Fatalf("oncetest: Redeliver gave no message")
		}
	}
	return msg
}

// deliver is one delivery, whatever comes of it.
func (r *run) deliver(event int, again bool) result {
	r.t.Helper()
	return r.process.deliver(r.ctx, r.proof.message(event, again), visit{}, r.proof.config.Timeout)
}

// once is a delivery that has to succeed.
func (r *run) once(event int, again bool) *finding {
	r.t.Helper()
	return r.refused(event, r.deliver(event, again))
}

// attempts is how often a message that was nacked comes again.
const attempts = 5

// until delivers again what was nacked, as the broker does.
func (r *run) until(event int, again bool) *finding {
	r.t.Helper()
	var res result
	for range attempts {
		if res = r.deliver(event, again); res.misuse != "" || res.acked {
			break
		}
		again = true
	}
	return r.refused(event, res)
}

// refused is what is wrong with a delivery that has to succeed; nil: nothing.
func (r *run) refused(event int, res result) *finding {
	switch {
	case res.misuse != "":
		return &finding{kind: "misuse", what: fmt.Sprintf("%s: %s", r.proof.name(event), res.misuse)}
	case res.err != nil:
		return &finding{kind: "error", what: fmt.Sprintf("%s: the handler returned an error: %v", r.proof.name(event), res.err)}
	case !res.acked:
		return &finding{kind: "error", what: fmt.Sprintf("%s: the handler nacked its message by itself", r.proof.name(event))}
	}
	return nil
}

// name is an event in a report.
func (p *proof) name(event int) string {
	return fmt.Sprintf("event %d (UUID %q)", event+1, p.events[event].UUID)
}

// left waits until the server has noticed that the process has died: its transactions are rolled back then, and their locks free.
func (r *run) left() {
	r.t.Helper()
	const query = `
select count(*)
from pg_stat_activity
where datname = current_database()
  and backend_type = 'client backend'
  and application_name <> '` + observer + `'`
	var n int
	gone := poll(time.Minute, func() bool {
		check(r.t, r.observe.QueryRow(r.t.Context(), query).Scan(&n))
		return n == 0
	})
	if !gone {
		r.t.Fatalf("oncetest: %d sessions did not end when their connections were cut", n)
	}
}

// poll asks until the answer is yes, less often as time goes by. False: it was never.
func poll(atMost time.Duration, yes func() bool) bool {
	deadline := time.Now().Add(atMost)
	for pause := time.Millisecond; !yes(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// forget empties the tables of claims.
func (r *run) forget(tables []string) {
	r.t.Helper()
	for _, name := range tables {
		quoted := pgx.Identifier(strings.Split(name, ".")).Sanitize()
		if _, err := r.observe.Exec(r.t.Context(), "delete from "+quoted); err != nil {
			r.t.Fatalf("oncetest: Claims: empty %s: %v", name, err)
		}
	}
}
