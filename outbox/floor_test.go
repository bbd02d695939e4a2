package outbox

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// world is PostgreSQL as far as the floor is concerned: transactions that draw ids, keys and offsets, and commit in any
// order.
type world struct {
	lastXID    uint64
	completed  uint64 // the latest transaction that has ended
	lastOffset int64
	running    []*writer
	rows       []worldRow
	locked     map[string]bool
}

type writer struct {
	xid  uint64
	keys []string
	rows []worldRow
}

type worldRow struct {
	offset int64
	key    string
}

func (w *world) snapshot() snapshot {
	s := snapshot{xmax: w.completed + 1}
	for _, r := range w.running {
		if r.xid < s.xmax {
			s.running = append(s.running, r.xid)
		}
	}
	return s
}

func (w *world) step(t *rapid.T) {
	switch rapid.IntRange(0, 3).Draw(t, "step") {
	case 0:
		w.lastXID++
		w.running = append(w.running, &writer{xid: w.lastXID})
	case 1, 2:
		if len(w.running) == 0 {
			return
		}
		tx := rapid.SampledFrom(w.running).Draw(t, "writer")
		key := fmt.Sprint("key", rapid.IntRange(0, 4).Draw(t, "key"))
		if w.locked[key] && !slices.Contains(tx.keys, key) {
			return // it would wait
		}
		w.locked[key] = true
		tx.keys = append(tx.keys, key)
		w.lastOffset++
		tx.rows = append(tx.rows, worldRow{w.lastOffset, key})
	case 3:
		if len(w.running) > 0 {
			w.end(rapid.IntRange(0, len(w.running)-1).Draw(t, "ends"), rapid.IntRange(0, 4).Draw(t, "aborts") > 0)
		}
	}
}

func (w *world) end(i int, commits bool) {
	tx := w.running[i]
	w.running = slices.Delete(w.running, i, i+1)
	w.completed = max(w.completed, tx.xid)
	if commits {
		w.rows = append(w.rows, tx.rows...)
	}
	for _, key := range tx.keys {
		delete(w.locked, key)
	}
}

func (w *world) seenRows(seen map[int64]bool) (rows []worldRow) {
	for _, row := range w.rows {
		if seen[row.offset] {
			rows = append(rows, row)
		}
	}
	return rows
}

// read does what a relay's trip does, with the world going on between its statements.
func (w *world) read(f *floor, seen map[int64]bool, limit int, between func()) (p page, rows []worldRow) {
	from := f.high
	p.mark.offset = w.lastOffset
	between()
	own := false
	if p.mark.offset > f.high {
		w.lastXID++
		p.mark.xid, own = w.lastXID, true
	}
	between()
	p.before = w.snapshot()
	between()
	visible := slices.Clone(w.rows)
	slices.SortFunc(visible, func(a, b worldRow) int { return int(a.offset - b.offset) })
	p.end = math.MaxInt64
	for _, row := range visible {
		if row.offset > from && !seen[row.offset] && len(rows) < limit {
			rows = append(rows, row)
		}
	}
	if len(rows) == limit {
		p.end = rows[len(rows)-1].offset
	}
	between()
	p.after = w.snapshot()
	if own {
		w.completed = max(w.completed, p.mark.xid)
	}
	return p, rows
}

// Whatever writers do, every row is read once, those of a key in their order, and none is left below the floor.
func TestTheFloorLosesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{locked: make(map[string]bool)}
		f := newFloor()
		now := time.Now()
		seen := make(map[int64]bool)
		last := make(map[string]int64)
		read := func(between func()) {
			p, rows := w.read(&f, seen, rapid.IntRange(1, 5).Draw(t, "limit"), between)
			failed := ""
			if len(seen) > 0 && rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
				// A message fails meanwhile: it and those of its key behind it have to be read again.
				row := rapid.SampledFrom(w.seenRows(seen)).Draw(t, "failed")
				failed, last[row.key] = row.key, row.offset-1
				for _, behind := range w.rows {
					if behind.key == row.key && behind.offset >= row.offset {
						delete(seen, behind.offset)
					}
				}
				defer f.back(row.offset - 1)
			}
			if !f.observe(p, now) {
				return
			}
			for _, row := range rows {
				if row.key == failed {
					continue
				}
				if row.offset < last[row.key] {
					t.Fatalf("%v is read behind %d", row, last[row.key])
				}
				seen[row.offset], last[row.key] = true, row.offset
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			w.step(t)
			now = now.Add(time.Duration(rapid.IntRange(0, 700).Draw(t, "ms")) * time.Millisecond)
			if rapid.Bool().Draw(t, "reads") {
				read(func() {
					if rapid.IntRange(0, 2).Draw(t, "between") == 0 {
						w.step(t)
					}
				})
			}
		}
		for len(w.running) > 0 {
			w.end(0, true)
		}
		for range 3 * (len(w.rows) + 3) {
			p, rows := w.read(&f, seen, 5, func() {})
			if f.observe(p, now) {
				for _, row := range rows {
					seen[row.offset] = true
				}
			}
		}
		if len(seen) != len(w.rows) {
			t.Fatalf("%d of %d rows were read", len(seen), len(w.rows))
		}
		if f.high != w.lastOffset && w.lastOffset > 0 {
			t.Fatalf("the floor stays at %d of %d", f.high, w.lastOffset)
		}
	})
}

// A transaction that runs long, here or in another database, does not hold the floor.
func TestTheFloorPassesALongTransaction(t *testing.T) {
	t.Parallel()
	w := &world{locked: make(map[string]bool)}
	f := newFloor()
	now := time.Now()
	seen := make(map[int64]bool)
	read := func() []worldRow {
		now = now.Add(100 * time.Millisecond)
		p, rows := w.read(&f, seen, 1000, func() {})
		if !f.observe(p, now) {
			return nil
		}
		for _, row := range rows {
			seen[row.offset] = true
		}
		return rows
	}
	commit := func() {
		w.lastXID++
		w.lastOffset++
		tx := &writer{xid: w.lastXID, rows: []worldRow{{w.lastOffset, "key"}}}
		w.running = append(w.running, tx)
		w.end(len(w.running)-1, true)
	}
	read()
	w.lastXID++
	w.lastOffset++
	long := &writer{xid: w.lastXID, rows: []worldRow{{w.lastOffset, "long"}}}
	w.running = append(w.running, long)
	low := f.high
	for range 5 {
		commit()
		require.Len(t, read(), 1)
		require.Equal(t, low, f.high, "it has to wait a while")
	}
	for range 20 {
		commit()
		require.Len(t, read(), 1)
	}
	require.Equal(t, w.lastOffset, f.high)
	require.Len(t, f.late, 1)

	w.end(slices.Index(w.running, long), true)
	require.Empty(t, read(), "a page that may lack rows is not used")
	require.Equal(t, []worldRow{{1, "long"}}, read())
	require.Equal(t, w.lastOffset, f.high)
	require.Empty(t, f.late)
}

func TestTheFloorGoesBackWithTheSequence(t *testing.T) {
	t.Parallel()
	f := newFloor()
	at := func(xid uint64) snapshot { return snapshot{xmax: xid} }
	require.True(t, f.observe(page{mark: mark{100, 10}, before: at(10), after: at(10), end: math.MaxInt64}, time.Now()))
	require.EqualValues(t, 100, f.high)
	require.False(t, f.observe(page{mark: mark{offset: 5}, before: at(11), after: at(11), end: math.MaxInt64}, time.Now()))
	require.EqualValues(t, ground, f.high)
}

func TestParseSnapshot(t *testing.T) {
	t.Parallel()
	s, err := parseSnapshot("10:20:")
	require.NoError(t, err)
	require.Equal(t, snapshot{xmax: 20}, s)
	s, err = parseSnapshot("10:20:10,14,18")
	require.NoError(t, err)
	require.Equal(t, snapshot{xmax: 20, running: []uint64{10, 14, 18}}, s)
	require.True(t, s.isRunning(14))
	require.True(t, s.isRunning(20))
	require.False(t, s.isRunning(15))
	for _, text := range []string{"", "1", "1:2", "1:x:", "1:2:x"} {
		_, err := parseSnapshot(text)
		require.Error(t, err, text)
	}
}
