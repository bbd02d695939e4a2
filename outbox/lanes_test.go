package outbox

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A message that is tried again, and waits in its lane, must not be forgotten for one of its key that fails.
func TestALaneIsClearedBehindWhatFailed(t *testing.T) {
	t.Parallel()
	l := newLanes()
	l.admit(&pending{offset: 7, key: "k"})
	rows := l.next(nil, 1, 1, 1)
	retried, later := &trouble{offset: 5}, &trouble{offset: 9}
	for _, row := range []*pending{{offset: 8}, {offset: 5, trouble: retried}, {offset: 9, trouble: later}} {
		row.key = "k"
		l.admit(row)
	}
	ln := l.returned(rows[0])
	require.Equal(t, []*trouble{later}, l.clear(ln, 7))
	l.goOn(ln)
	require.Equal(t, 1, l.waiting)
	require.EqualValues(t, 5, l.next(nil, 1, 1, 0)[0].offset)
}

// Whatever is done to lanes, each knows where it waits, and what it has is in order.
func TestLanesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := newLanes()
		var sending []*pending
		offset := int64(0)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			key := fmt.Sprint("key", rapid.IntRange(0, 4).Draw(t, "key"))
			topic := fmt.Sprint("topic", rapid.IntRange(0, 2).Draw(t, "topic"))
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0, 1:
				offset += 10
				row := &pending{offset: offset, key: key, topic: topic, payload: make([]byte, rapid.IntRange(0, 3).Draw(t, "size"))}
				if rapid.IntRange(0, 3).Draw(t, "late") == 0 {
					row.offset -= rapid.Int64Range(0, 50).Draw(t, "by")*10 + 5
				}
				if rapid.IntRange(0, 3).Draw(t, "retry") == 0 {
					row.trouble = &trouble{offset: row.offset}
				}
				if _, known := l.known[row.offset]; !known {
					l.admit(row)
				}
			case 2:
				sending = append(sending, l.next(nil, rapid.IntRange(1, 5).Draw(t, "limit"), 2, 5)...)
			case 3:
				for _, row := range sending {
					ln := l.returned(row)
					delete(l.known, row.offset)
					if rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
						l.clear(ln, row.offset)
					}
				}
				for _, row := range sending {
					if ln := l.byKey[row.key]; ln != nil {
						l.goOn(ln)
					}
				}
				sending = nil
			case 4:
				if ln := l.byKey[key]; ln != nil {
					if ln.busy && rapid.Bool().Draw(t, "strip") {
						l.strip(ln)
					} else {
						l.trim(ln, rapid.IntRange(1, 3).Draw(t, "keep"))
					}
				}
			case 5:
				if l.held[topic] == nil {
					l.holdTopic(topic)
				} else {
					l.releaseTopic(topic)
				}
			case 6:
				if ln := l.byKey[key]; ln != nil {
					l.clear(ln, rapid.SampledFrom([]int64{math.MinInt64, offset - 20}).Draw(t, "behind"))
				}
			}
			checkLanes(t, &l, len(sending))
		}
	})
}

func checkLanes(t *rapid.T, l *lanes, sending int) {
	waiting, bytes, inHeaps := 0, 0, len(l.fresh)+len(l.retry)
	for _, held := range l.held {
		inHeaps += len(*held)
	}
	for key, ln := range l.byKey {
		waiting += len(ln.queue)
		for i, row := range ln.queue {
			bytes += len(row.payload)
			if i > 0 && row.offset <= ln.queue[i-1].offset || l.known[row.offset] != row {
				t.Fatalf("lane %s has %d in a wrong place", key, row.offset)
			}
		}
		if ln.cut != (l.cut[key] == ln) {
			t.Fatalf("lane %s is cut, or is not", key)
		}
		if ln.in == nil {
			continue
		}
		inHeaps--
		if ln.busy || len(ln.queue) == 0 || ln.in != l.heapOf(ln.queue[0]) || (*ln.in)[ln.index] != ln {
			t.Fatalf("lane %s waits in the wrong place", key)
		}
	}
	if bytes != l.bytes {
		t.Fatalf("%d bytes, counted as %d", bytes, l.bytes)
	}
	if waiting != l.waiting || sending != l.sending || inHeaps != 0 {
		t.Fatalf("%d waiting, counted as %d; %d sending, counted as %d; %d too many in heaps", waiting, l.waiting, sending, l.sending, inHeaps)
	}
}
