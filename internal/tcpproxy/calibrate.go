package tcpproxy

import (
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// passingTime is calibrate's result, which is one for all proxies of a program.
var passingTime = sync.OnceValues(calibrate)

// mostPassing bounds what is believed of a calibration: more than this is not the proxy's cost but a busy machine's.
const mostPassing = 100 * time.Microsecond

// calibrate measures what a delayed piece of data takes longer than its delay in one direction: to be woken up for it, twice, and to
// pass it on. Tens of microseconds, which count where half a millisecond is to be added.
func calibrate() (time.Duration, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = listener.Close() }()
	direct, err := echoTime(listener, listener.Addr().String())
	if err != nil {
		return 0, err
	}
	p, err := Start(listener.Addr().String())
	if err != nil {
		return 0, err
	}
	defer func() { _ = p.Close() }()
	const delay = 200 * time.Microsecond
	p.latency = 2 * delay
	delayed, err := echoTime(listener, p.Addr())
	if err != nil {
		return 0, err
	}
	return min(max(0, (delayed-direct)/2-delay), mostPassing), nil
}

// echoTime is how long a byte takes to the listener by way of address, and back: the median of many tries.
func echoTime(listener net.Listener, address string) (time.Duration, error) {
	here, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer func() { _ = here.Close() }()
	there, err := listener.Accept()
	if err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(there, struct{ io.Reader }{there}) // not by splice, as no server answers
	}()
	defer func() { <-ended }()
	defer func() { _ = there.Close() }()

	times := make([]time.Duration, 100)
	var b [1]byte
	for i := range times {
		start := time.Now()
		if _, err := here.Write(b[:]); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(here, b[:]); err != nil {
			return 0, err
		}
		times[i] = time.Since(start)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}
