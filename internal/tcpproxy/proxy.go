package tcpproxy

import (
	"net"
	"sync"
	"time"
)

// Direction is one of the two in which data flows.
type Direction int

const (
	ToServer Direction = iota
	FromServer
)

// Proxy forwards the connections that it gets to a server. Its methods may be called at any time, from several goroutines.
type Proxy struct {
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond
	links   map[*link]struct{}
	down    bool
	held    [2]bool
	latency time.Duration
	onData  func(Direction, []byte) bool
	onConn  func() func(Direction, []byte) bool
	trips   int
}

// Start listens on a free port of 127.0.0.1, for connections to the TCP address target.
func Start(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, listener: listener, links: map[*link]struct{}{}}
	p.changed.L = &p.mu
	p.running.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Down makes new connections fail, or work again. Those that are open stay; Cut ends them.
func (p *Proxy) Down(down bool) {
	p.set(func() { p.down = down })
}

// Cut resets all open connections, as a crashed peer does. Data on its way is lost.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAll()
}

// Hold keeps data of one direction back, or lets it go on: a network that loses packets without a word.
func (p *Proxy) Hold(direction Direction, held bool) {
	p.set(func() { p.held[direction] = held })
}

// Latency makes each round trip take d longer, half of it in each direction. It delays and does not throttle: what follows at once
// arrives at once. On Linux it is right to some hundredths of a millisecond on a machine that is not busy; the first call takes a
// moment to measure what the proxy costs by itself, which is then part of d.
func (p *Proxy) Latency(d time.Duration) error {
	if d > 0 {
		passing, err := passingTime()
		if err != nil {
			return err
		}
		d = max(0, d-2*passing)
	}
	p.set(func() { p.latency = d })
	return nil
}

// OnData has f see each piece of data as it comes in, before it is held or delayed; where f says false, the connection is cut and the
// piece is lost. f is called from several goroutines; it must not keep the piece, nor call Close. nil: nobody sees it.
func (p *Proxy) OnData(f func(direction Direction, piece []byte) bool) {
	p.set(func() { p.onData = f })
}

// OnConnect has f called for each new connection; what it returns sees that connection's data by the rules of OnData, and may also
// wait, which holds the piece back. nil: nobody does.
func (p *Proxy) OnConnect(f func() func(direction Direction, piece []byte) bool) {
	p.set(func() { p.onConn = f })
}

// RoundTrips is how often, since the last Reset, a client has sent something for which it had waited for the server.
func (p *Proxy) RoundTrips() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trips
}

// Reset sets the count of round trips to zero.
func (p *Proxy) Reset() {
	p.set(func() { p.trips = 0 })
}

// Close cuts all connections and waits until nothing of the proxy runs any more.
func (p *Proxy) Close() error {
	err := p.listener.Close()
	p.mu.Lock()
	p.down = true
	p.cutAll()
	p.mu.Unlock()
	p.running.Wait()
	return err
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.changed.Broadcast()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client.(*net.TCPConn)) })
	}
}

func (p *Proxy) serve(client *net.TCPConn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		reset(client)
		return
	}
	l := newLink(p, client, server.(*net.TCPConn))
	p.mu.Lock()
	onConn := p.onConn
	p.mu.Unlock()
	if onConn != nil {
		l.onData = onConn()
	}
	p.mu.Lock()
	if p.down {
		l.cut()
	} else {
		p.links[l] = struct{}{}
	}
	p.mu.Unlock()

	l.run()

	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// cutAll is to be called with the lock held.
func (p *Proxy) cutAll() {
	for l := range p.links {
		l.cut()
	}
	p.changed.Broadcast()
}

// reset closes a connection without taking leave: the peer sees an error, not an end.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
