package oncetest

import (
	"fmt"
	"slices"
)

// repeated tells what a repeat has changed within a run: nothing may.
func repeated(before, after *state, resends bool) []string {
	changes := differ{
		columns: func(column) bool { return true },
		missing: "a row is gone", extra: "a row appeared", from: "before", to: "after",
	}.tables(before, after)

	known := map[string]bool{}
	for _, s := range before.sent {
		known[s.msg.UUID] = true
	}
	seen := map[string]int{}
	for _, s := range before.sent {
		seen[s.whole()]++
	}
	for _, s := range after.sent {
		if seen[s.whole()]--; seen[s.whole()] < 0 && !(resends && known[s.msg.UUID]) {
			changes = append(changes, "a message left: "+s.describe())
		}
	}
	return changes
}

// compare tells where a run ended in another state than an undisturbed one. resends: a message that left several times under one UUID
// counts once.
func (p *proof) compare(calm, disturbed *state, resends bool) []string {
	return append(compareRows(calm, disturbed), p.compareSent(calm, disturbed, resends)...)
}

func compareRows(calm, disturbed *state) []string {
	return differ{
		columns: func(c column) bool { return !c.volatile },
		missing: "a row is missing", extra: "a row too many", from: "undisturbed", to: "here",
	}.tables(calm, disturbed)
}

func (p *proof) compareSent(calm, disturbed *state, resends bool) []string {
	a, b := p.sentBy(calm, resends), p.sentBy(disturbed, resends)
	var changes []string
	for _, key := range sortedKeys(a, b) {
		for n := len(b[key]); n < len(a[key]); n++ {
			changes = append(changes, "a message did not leave: "+a[key][n].describe())
		}
		for n := len(a[key]); n < len(b[key]); n++ {
			changes = append(changes, "a message left too often: "+b[key][n].describe())
		}
	}
	return changes
}

// sentBy groups the messages by what of them counts.
func (p *proof) sentBy(s *state, resends bool) map[string][]sent {
	groups, known := map[string][]sent{}, map[string]bool{}
	for _, m := range s.sent {
		key := p.config.Message(m.topic, m.msg)
		if same := m.msg.UUID + "\x00" + key; m.msg.UUID == "" || !resends || !known[same] {
			known[same] = true
			groups[key] = append(groups[key], m)
		}
	}
	return groups
}

func (s sent) whole() string { return s.msg.UUID + "\x00" + identity(s.topic, s.msg) }

func (s sent) describe() string {
	return fmt.Sprintf("topic %q, UUID %q, payload %s", s.topic, s.msg.UUID, brief(string(s.msg.Payload)))
}

// differ compares the rows of two states.
type differ struct {
	columns                  func(column) bool // which count
	missing, extra, from, to string            // the words
}

func (d differ) tables(a, b *state) []string {
	tables := map[string]*table{}
	for _, t := range slices.Concat(a.tables, b.tables) {
		tables[t.String()] = t
	}
	var changes []string
	for _, name := range sortedKeys(tables, nil) {
		changes = append(changes, d.table(tables[name], a.rows[name], b.rows[name])...)
	}
	return changes
}

func (d differ) table(t *table, a, b []row) []string {
	counted := t.indexes(d.columns)
	keys := t.indexes(func(c column) bool { return c.key })
	if slices.ContainsFunc(keys, func(i int) bool { return !d.columns(t.columns[i]) }) {
		keys = nil // rows cannot be told by it
	}
	before, after := rowsOf(a, keys, counted), rowsOf(b, keys, counted)
	var changes []string
	for _, key := range sortedKeys(before, after) {
		x, y := before[key], after[key]
		for n := range max(len(x), len(y)) {
			switch {
			case n >= len(y):
				changes = append(changes, fmt.Sprintf("%s: %s: %s", t, d.missing, t.describe(x[n], counted)))
			case n >= len(x):
				changes = append(changes, fmt.Sprintf("%s: %s: %s", t, d.extra, t.describe(y[n], counted)))
			default:
				changes = append(changes, d.row(t, keys, counted, x[n], y[n])...)
			}
		}
	}
	return changes
}

// row names each column that differs.
func (d differ) row(t *table, keys, counted []int, x, y row) []string {
	if len(x) != len(t.columns) || len(y) != len(t.columns) {
		return []string{fmt.Sprintf("%s: the table has other columns than before", t)}
	}
	var changes []string
	for _, i := range counted {
		if text(x[i]) != text(y[i]) {
			changes = append(changes, fmt.Sprintf("%s (%s), column %s: %s %s, %s %s",
				t, t.describe(x, keys), t.columns[i].name, d.from, shown(x[i]), d.to, shown(y[i])))
		}
	}
	return changes
}

// text tells null from "".
func text(value *string) string {
	if value == nil {
		return ""
	}
	return "t" + *value
}
