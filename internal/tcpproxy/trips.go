package tcpproxy

import "encoding/binary"

// tripCounter follows PostgreSQL's protocol on one connection, to tell what the client sends without waiting (a pipeline) from what
// it sends once the server has answered. See https://www.postgresql.org/docs/current/protocol-message-formats.html.
type tripCounter struct {
	client, server framer
	begun          bool // the client has said something
	started        bool // the server has said that it is ready: the exchange of passwords is over
	encryption     bool // the client has asked for encryption; the answer is a byte that is no message
	encrypted      bool // nothing can be read any more, and turns are all there is to count
	asked          int  // messages that each bring a "ready", less those answered
	flushed        bool // the client wants to see answers before "ready"
	turn           bool // it is the client's turn
}

// see takes in a piece of data and says whether a round trip begins with it.
func (c *tripCounter) see(direction Direction, data []byte) (begins bool) {
	switch {
	case len(data) == 0:
		return false
	case direction == FromServer:
		c.answer(data)
		return false
	case !c.started || c.encrypted:
		c.encryption = asksEncryption(data)
		begins = !c.begun || c.turn
		c.begun, c.turn = true, false
		return begins
	}
	c.client.each(data, func(kind byte) {
		switch kind {
		case 'X': // Terminate: a farewell, and no question
			return
		case 'Q', 'S', 'F': // Query, Sync, FunctionCall
			c.asked++
		case 'H': // Flush
			c.flushed = true
		}
		begins, c.turn = begins || c.turn, false
	})
	return begins
}

func (c *tripCounter) answer(data []byte) {
	if c.encryption {
		c.encryption, c.encrypted = false, data[0] != 'N'
		c.turn = true
		data = data[1:]
	}
	if c.encrypted || !c.started {
		c.turn = true // before the first "ready", each answer is waited for
	}
	if c.encrypted {
		return
	}
	c.server.each(data, func(kind byte) {
		switch kind {
		case 'Z': // ReadyForQuery
			if c.started {
				c.asked = max(0, c.asked-1)
			}
			c.started = true
			c.turn = c.asked == 0
		case 'G', 'W': // CopyInResponse, CopyBothResponse
			c.turn = true
		}
	})
	if c.flushed {
		c.flushed, c.turn = false, true
	}
}

// asksEncryption knows SSLRequest and GSSENCRequest.
func asksEncryption(data []byte) bool {
	if len(data) != 8 {
		return false
	}
	code := binary.BigEndian.Uint32(data[4:])
	return code == 80877103 || code == 80877104
}

// framer finds the messages in a stream: a byte for their kind, and four for their length, which counts itself.
type framer struct {
	header [5]byte
	have   int // bytes of the header
	skip   int // bytes of the message's body still to come
}

func (f *framer) each(data []byte, do func(kind byte)) {
	for len(data) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(data))
			f.skip, data = f.skip-n, data[n:]
			continue
		}
		n := copy(f.header[f.have:], data)
		f.have, data = f.have+n, data[n:]
		if f.have == len(f.header) {
			f.have = 0
			f.skip = max(0, int(binary.BigEndian.Uint32(f.header[1:]))-4)
			do(f.header[0])
		}
	}
}
