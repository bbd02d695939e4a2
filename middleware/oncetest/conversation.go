package oncetest

import (
	"bytes"
	"encoding/binary"
	"strings"
	"time"

	"github.com/watermill-once/watermill-once/internal/tcpproxy"
)

// conversation follows PostgreSQL's protocol on one connection. See
// https://www.postgresql.org/docs/current/protocol-message-formats.html.
type conversation struct {
	wire       *wire
	client     stream
	server     stream
	encryption bool              // it was asked for; the answer is a byte that is no message
	started    bool              // the exchange of passwords is over
	open       bool              // a request is not yet answered
	asked      int               // messages of it that each bring a "ready", less those answered
	request    int               // its number
	statements map[string]string // prepared, by name
	prepared   string            // the last one, while it is not run
}

// see looks at a piece before it is passed on; false: it is lost, and the connection with it.
func (c *conversation) see(direction tcpproxy.Direction, piece []byte) bool {
	c.wire.mu.Lock()
	c.wire.last = time.Now()
	if direction == tcpproxy.FromServer {
		defer c.wire.mu.Unlock()
		return c.hear(piece)
	}
	begins, pass := c.say(piece)
	gate := c.wire.gate
	c.wire.mu.Unlock()
	if begins && pass && gate != nil {
		gate.wait()
	}
	return pass
}

// say takes in what the client sends.
func (c *conversation) say(piece []byte) (begins, pass bool) {
	if !c.started {
		c.encryption = asksEncryption(piece)
		return false, true
	}
	w := c.wire
	texts := c.read(piece)
	if c.asked == 0 && len(c.client.rest) == 0 && !c.open && len(texts) == 0 {
		return false, true // a farewell
	}
	if !c.open {
		begins, c.open, c.request = true, true, len(w.requests)
		head := strings.Join(texts, "; ")
		w.requests = append(w.requests, request{sql: head, head: head, sent: w.sent()})
	} else if c.request < len(w.requests) && len(texts) > 0 {
		sql := &w.requests[c.request].sql
		*sql = strings.TrimPrefix(*sql+"; "+strings.Join(texts, "; "), "; ")
	}
	if begins && w.due(c.request) && !w.cut.answer {
		return begins, w.fire()
	}
	return begins, true
}

// read gives the SQL in what the client has sent.
func (c *conversation) read(piece []byte) (texts []string) {
	c.client.each(piece, func(kind byte, body []byte) {
		switch kind {
		case 'Q': // Query
			c.asked++
			texts = append(texts, word(body))
		case 'P': // Parse: a name, then the text
			name := word(body)
			c.prepared = word(body[min(len(body), len(name)+1):])
			c.statements[name] = c.prepared
		case 'B': // Bind: a portal, then the statement's name
			portal := word(body)
			texts = append(texts, c.statements[word(body[min(len(body), len(portal)+1):])])
			c.prepared = ""
		case 'S', 'F': // Sync, FunctionCall
			c.asked++
			if c.prepared != "" {
				texts = append(texts, "prepare "+c.prepared)
				c.prepared = ""
			}
		}
	})
	return texts
}

// hear takes in what the server answers.
func (c *conversation) hear(piece []byte) bool {
	if c.encryption {
		c.encryption = false
		if piece[0] != 'N' {
			return true // encrypted from here on, and nothing to be read
		}
		piece = piece[1:]
	}
	pass := true
	c.server.each(piece, func(kind byte, _ []byte) {
		if kind != 'Z' { // ReadyForQuery
			return
		}
		c.asked = max(0, c.asked-1)
		if !c.started || c.asked > 0 {
			c.started = true
			return
		}
		if c.open && c.wire.due(c.request) && c.wire.cut.answer {
			pass = c.wire.fire()
		}
		c.open = false
	})
	return pass
}

// asksEncryption knows SSLRequest and GSSENCRequest.
func asksEncryption(piece []byte) bool {
	if len(piece) != 8 {
		return false
	}
	code := binary.BigEndian.Uint32(piece[4:])
	return code == 80877103 || code == 80877104
}

// word is a text up to its NUL.
func word(body []byte) string {
	text, _, _ := bytes.Cut(body, []byte{0})
	return string(text)
}

// stream finds the messages in one direction: a byte for their kind, and four for their length, which counts itself.
type stream struct{ rest []byte }

func (s *stream) each(piece []byte, do func(kind byte, body []byte)) {
	s.rest = append(s.rest, piece...)
	for len(s.rest) >= 5 {
		end := 1 + int(binary.BigEndian.Uint32(s.rest[1:5]))
		if end < 5 || len(s.rest) < end {
			return
		}
		do(s.rest[0], s.rest[5:end])
		s.rest = s.rest[end:]
	}
}
