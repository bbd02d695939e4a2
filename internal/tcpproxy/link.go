package tcpproxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// link is one connection through the proxy.
type link struct {
	proxy *Proxy
	ends  [2]*net.TCPConn // where each direction goes to
	trips tripCounter     // guarded by the proxy's lock

	onData func(Direction, []byte) bool // of this connection alone; may be nil

	once sync.Once
	over chan struct{} // closed when the link has been cut
}

func newLink(p *Proxy, client, server *net.TCPConn) *link {
	return &link{proxy: p, ends: [2]*net.TCPConn{ToServer: server, FromServer: client}, over: make(chan struct{})}
}

// cut resets both ends. It may be called several times, with the proxy's lock held or not.
func (l *link) cut() {
	l.once.Do(func() {
		close(l.over)
		reset(l.ends[ToServer])
		reset(l.ends[FromServer])
	})
}

// run ends when both directions have: by an end of data in each, or by a cut.
func (l *link) run() {
	var pipes sync.WaitGroup
	for _, direction := range []Direction{ToServer, FromServer} {
		p := newPipe(l, direction)
		pipes.Go(p.fill)
		pipes.Go(p.drain)
	}
	pipes.Wait()
	l.once.Do(func() {
		_ = l.ends[ToServer].Close()
		_ = l.ends[FromServer].Close()
	})
}

// pipe is one direction of a link: a delay line, filled at one end and drained at the other.
type pipe struct {
	link      *link
	direction Direction
	from, to  *net.TCPConn
	line      chan piece
	free      chan []byte // buffers to use again: a benchmark behind the proxy counts allocations
}

// piece is data that has come in, or the end of it.
type piece struct {
	buffer []byte
	n      int
	due    time.Time
	err    error // io.EOF, or what else ended the direction
}

// depth bounds what a pipe takes in ahead of what it gives out.
const (
	depth      = 64
	bufferSize = 16 << 10
)

func newPipe(l *link, direction Direction) *pipe {
	return &pipe{
		link: l, direction: direction, from: l.ends[1-direction], to: l.ends[direction],
		line: make(chan piece, depth), free: make(chan []byte, depth),
	}
}

func (p *pipe) fill() {
	defer close(p.line)
	for {
		var next piece
		select {
		case next.buffer = <-p.free:
		default:
			next.buffer = make([]byte, bufferSize)
		}
		next.n, next.err = p.from.Read(next.buffer)
		now := time.Now()
		delay, pass := p.link.admit(p.direction, next.buffer[:next.n])
		if !pass {
			p.link.cut()
			return
		}
		next.due = now.Add(delay)
		select {
		case p.line <- next:
		case <-p.link.over:
			return
		}
		if next.err != nil {
			return
		}
	}
}

func (p *pipe) drain() {
	clock := newClock()
	defer clock.close()
	for next := range p.line {
		if !clock.wait(next.due, p.link.over) || !p.link.release(p.direction) {
			return
		}
		_, err := p.to.Write(next.buffer[:next.n])
		select {
		case p.free <- next.buffer:
		default:
		}
		switch err = errors.Join(err, next.err); {
		case err == nil:
		case errors.Is(next.err, io.EOF):
			_ = p.to.CloseWrite()
		default:
			p.link.cut()
			return
		}
	}
}

// admit counts a piece, shows it to OnData, and says how long to delay it, and whether to pass it on.
func (l *link) admit(direction Direction, data []byte) (delay time.Duration, pass bool) {
	p := l.proxy
	p.mu.Lock()
	if l.trips.see(direction, data) {
		p.trips++
	}
	delay, onData := p.latency/2, p.onData
	p.mu.Unlock()
	if len(data) == 0 {
		return delay, true
	}
	return delay, (onData == nil || onData(direction, data)) && (l.onData == nil || l.onData(direction, data))
}

// release waits while the direction is held. It is false where the link was cut meanwhile.
func (l *link) release(direction Direction) bool {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		select {
		case <-l.over:
			return false
		default:
		}
		if !p.held[direction] {
			return true
		}
		p.changed.Wait()
	}
}
