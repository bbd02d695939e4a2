package oncetest

import (
	"sync"
	"time"

	"github.com/watermill-once/watermill-once/internal/tcpproxy"
)

// wire is all that a process says to PostgreSQL, seen as requests: what a client sends when it is its turn, up to the server's answer
// that it is ready. It can cut the connection at one, and let several connections take their requests in step.
type wire struct {
	proxy *tcpproxy.Proxy
	sent  func() int // how many messages have left

	mu       sync.Mutex
	requests []request // of the delivery that is watched
	cut      *cut      // nil: none is to come
	gate     *gate     // nil: nobody waits
	last     time.Time
}

// request is what a client has sent at a time.
type request struct {
	sql  string
	head string // what of sql was in its first piece, by which it is known again
	sent int    // how many messages had left by then
}

// cut is where the line is to be cut.
type cut struct {
	head    string // of the request
	nth     int    // of those of the delivery that have this head: 0 is the first
	answer  bool   // the server has done what was asked, and the answer is lost; else the request is lost
	dies    bool   // the process dies with it: nothing more reaches the server, and nothing else leaves
	onDeath func()
}

func newWire(proxy *tcpproxy.Proxy, sent func() int) *wire {
	w := &wire{proxy: proxy, sent: sent}
	proxy.OnConnect(func() func(tcpproxy.Direction, []byte) bool {
		c := &conversation{wire: w, statements: map[string]string{}}
		return c.see
	})
	return w
}

// watch begins to count anew. c may be nil.
func (w *wire) watch(c *cut) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests, w.cut = nil, c
}

// seen lists the requests since watch.
func (w *wire) seen() []request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.requests
}

// revive lets a process that was dead talk again.
func (w *wire) revive() {
	w.watch(nil)
	w.proxy.Down(false)
}

// due tells whether a request is the one to be cut at. Its number would not tell: on a fresh connection drivers prepare statements first.
func (w *wire) due(request int) bool {
	if w.cut == nil || request >= len(w.requests) || w.requests[request].head != w.cut.head {
		return false
	}
	nth := 0
	for _, earlier := range w.requests[:request] {
		if earlier.head == w.cut.head {
			nth++
		}
	}
	return nth == w.cut.nth
}

// fire cuts. It is called with the lock held, and returns what a proxy's hook does to lose the piece.
func (w *wire) fire() bool {
	if w.cut.dies {
		w.cut.onDeath()
		w.proxy.Down(true)
		w.proxy.Cut()
	}
	w.cut = nil
	return false
}

// step has n connections wait for each other before each request, until the function that it returns is called.
func (w *wire) step(n int) (g *gate, end func()) {
	g = &gate{wire: w, running: n, turn: make(chan struct{})}
	w.mu.Lock()
	w.gate = g
	w.mu.Unlock()
	return g, func() {
		w.mu.Lock()
		w.gate = nil
		w.mu.Unlock()
		g.open()
	}
}

// gate opens when all have come to it, or when those who are missing stay away: they wait for a lock, or have no connection.
type gate struct {
	wire    *wire
	mu      sync.Mutex
	running int // deliveries
	waiting int
	turn    chan struct{} // closed when it opens
}

// quiet is how long nothing may be heard on the line before the missing are no longer waited for.
const quiet = 25 * time.Millisecond

func (g *gate) wait() {
	g.mu.Lock()
	turn := g.turn
	if g.waiting++; g.waiting >= g.running {
		g.release()
	}
	g.mu.Unlock()
	for {
		pause := g.wire.silence()
		if pause <= 0 {
			g.mu.Lock()
			if g.turn == turn {
				g.release()
			}
			g.mu.Unlock()
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-turn:
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// silence is how much longer the line has to be quiet.
func (w *wire) silence() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return quiet - time.Since(w.last)
}

// leave says that a delivery has ended.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running--; g.waiting >= g.running {
		g.release()
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.release()
}

func (g *gate) release() {
	close(g.turn)
	g.turn, g.waiting = make(chan struct{}), 0
}
