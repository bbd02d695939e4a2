package oncetest

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/tcpproxy"
)

func typed(kind byte, body string) string {
	return string(binary.BigEndian.AppendUint32([]byte{kind}, uint32(4+len(body)))) + body
}

// talk plays one side's turns after the other's: what the client says is marked by ">".
func talk(c *conversation, turns ...string) (passed []bool) {
	for _, turn := range turns {
		direction := tcpproxy.FromServer
		piece, client := strings.CutPrefix(turn, ">")
		if client {
			direction = tcpproxy.ToServer
		}
		passed = append(passed, c.see(direction, []byte(piece)))
	}
	return passed
}

func converse() *conversation {
	w := &wire{sent: func() int { return 0 }}
	c := &conversation{wire: w, statements: map[string]string{}}
	talk(c,
		">"+string([]byte{0, 0, 0, 8, 4, 210, 22, 47}), // SSLRequest
		"N",
		">the user, the database",
		typed('R', "password, please"), ">password", typed('R', "")+typed('Z', "I"))
	return c
}

func sqlOf(w *wire) (all []string) {
	for _, r := range w.seen() {
		all = append(all, r.sql)
	}
	return all
}

var (
	ready   = typed('Z', "T")
	end     = typed('S', "")
	query   = func(sql string) string { return typed('Q', sql+"\x00") }
	parse   = func(name, sql string) string { return typed('P', name+"\x00"+sql+"\x00\x00\x00") }
	bind    = func(name string) string { return typed('B', "\x00"+name+"\x00....") + typed('E', "\x00....") }
	goodbye = typed('X', "")
)

func TestConversationFindsRequests(t *testing.T) {
	t.Parallel()
	c := converse()
	talk(c,
		">"+query("begin"), typed('C', "BEGIN")+ready, // simple protocol
		">"+parse("s1", "insert 1")+typed('D', "Ss1")+end, typed('1', "")+ready, // prepared
		">"+bind("s1")+end, typed('C', "INSERT")+ready,
		">"+parse("", "insert 2")+bind("")+end, ready, // in one
		">"+bind("s1")+bind("s1")+parse("", "commit")+bind("")+end, ready, // a pipeline
		">"+goodbye)
	require.Equal(t, []string{"begin", "prepare insert 1", "insert 1", "insert 2", "insert 1; insert 1; commit"}, sqlOf(c.wire))

	c.wire.watch(nil)
	talk(c, ">"+query("begin"), ready)
	require.Equal(t, []string{"begin"}, sqlOf(c.wire))
}

// Pieces may end anywhere, and a request that comes in several is one.
func TestConversationPutsPiecesTogether(t *testing.T) {
	t.Parallel()
	c := converse()
	for range 2 {
		for _, b := range parse("", "insert") + bind("") + end {
			talk(c, ">"+string(b))
		}
		for _, b := range typed('C', "INSERT") + ready {
			talk(c, string(b))
		}
	}
	require.Equal(t, []string{"insert", "insert"}, sqlOf(c.wire))
}

func TestConversationCuts(t *testing.T) {
	t.Parallel()
	c := converse()
	commit := ">" + parse("", "commit") + bind("") + end
	c.wire.watch(&cut{head: "commit", nth: 1})
	require.Equal(t, []bool{true, true, true, true, false}, talk(c, commit, ready, ">"+query("begin"), ready, commit))

	c = converse()
	c.wire.watch(&cut{head: "insert; commit", answer: true})
	pipeline := ">" + query("insert")[:3]
	require.Equal(t, []bool{true, true, true}, talk(c, pipeline, ">"+query("insert")[3:], ready), "its first piece has another head")
	pipeline = ">" + parse("", "insert") + bind("") + parse("", "commit") + bind("") + end
	require.Equal(t, []bool{true, true, false}, talk(c, pipeline, typed('C', "INSERT"), typed('C', "COMMIT")+ready))
	require.Equal(t, []bool{true, true}, talk(c, pipeline, ready), "it cuts once")
}
