package child

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort finds a port of 127.0.0.1 for a child to listen on. It looks below those that systems give to outgoing connections:
// one of them could take the port of a child that is down for a moment.
func FreePort() (int, error) {
	var err error
	for range 100 {
		port := 15000 + rand.IntN(15000)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port: %w", err)
}
