package oncetest

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
)

// state is what the outside can see: the rows of the user's tables, and the messages that have left.
type state struct {
	tables []*table
	rows   map[string][]row // by table
	sent   []sent
	idle   bool // nothing has changed since the run began
}

// row has the text of each column; nil: null.
type row []*string

// look takes in the state. Nothing is under way meanwhile.
func (r *run) look() *state {
	r.t.Helper()
	s := &state{rows: map[string][]row{}, sent: r.broker.all()}
	tables := r.catalog()
	var batch pgx.Batch
	for _, t := range tables {
		batch.Queue(t.query())
	}
	results := r.observe.SendBatch(r.t.Context(), &batch)
	for _, t := range tables {
		rows, err := results.Query()
		check(r.t, err)
		if t.outbox {
			left, err := pgx.CollectRows(rows, scanSent)
			check(r.t, err)
			s.sent = append(s.sent, left...)
			continue
		}
		s.tables = append(s.tables, t)
		s.rows[t.String()], err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (row, error) {
			var values []*string
			err := r.Scan(&values)
			return values, err
		})
		check(r.t, err)
	}
	check(r.t, results.Close())
	return s
}

func (t *table) query() string {
	from := " from " + pgx.Identifier{t.schema, t.name}.Sanitize()
	if t.outbox {
		topic, payload := `'`+strings.ReplaceAll(strings.TrimPrefix(t.name, "watermill_"), `'`, `''`)+`'`, "payload"
		if t.has("topic") {
			topic = "topic"
		}
		for _, c := range t.columns {
			if c.name == "payload" && !c.binary {
				payload = "payload::text"
			}
		}
		return "select uuid::text, " + topic + ", " + payload + ", metadata::text" + from + ` order by "offset"`
	}
	columns := make([]string, len(t.columns))
	for i, c := range t.columns {
		columns[i] = pgx.Identifier{c.name}.Sanitize() + "::text"
	}
	return "select array[" + strings.Join(columns, ", ") + "]::text[]" + from
}

// scanSent reads a row of an outbox, ours or watermill-sql's.
func scanSent(r pgx.CollectableRow) (sent, error) {
	var (
		uuid, topic string
		payload     []byte
		metadata    *string
	)
	if err := r.Scan(&uuid, &topic, &payload, &metadata); err != nil {
		return sent{}, err
	}
	msg := message.NewMessage(uuid, payload)
	if metadata != nil {
		if err := json.Unmarshal([]byte(*metadata), &msg.Metadata); err != nil {
			return sent{}, err
		}
	}
	return sent{topic, msg}, nil
}

// rowsOf keys rows for a comparison: by the columns at keys, or by the whole row where there are none. Rows of one key are
// counted by putting them one behind the other.
func rowsOf(rows []row, keys, counted []int) map[string][]row {
	byKey := map[string][]row{}
	for _, values := range rows {
		at := keys
		if len(keys) == 0 {
			at = counted
		}
		var b strings.Builder
		for _, i := range at {
			if values[i] == nil {
				b.WriteString("n")
			} else {
				b.WriteString("t" + *values[i] + "\x00") // which no text in PostgreSQL holds
			}
		}
		byKey[b.String()] = append(byKey[b.String()], values)
	}
	return byKey
}

// indexes lists the columns that f picks.
func (t *table) indexes(f func(column) bool) []int {
	var at []int
	for i, c := range t.columns {
		if f(c) {
			at = append(at, i)
		}
	}
	return at
}

// describe is a row for a report, of some of its columns.
func (t *table) describe(values row, at []int) string {
	parts := make([]string, len(at))
	for i, n := range at {
		parts[i] = t.columns[n].name + "=" + shown(values[n])
	}
	return strings.Join(parts, " ")
}

func shown(value *string) string {
	if value == nil {
		return "null"
	}
	return brief(*value)
}

// brief keeps a text in a report on its line: its beginning and its end, which of a request is often the COMMIT.
func brief(text string) string {
	const head, tail = 70, 20
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > head+tail {
		text = string(runes[:head]) + " ... " + string(runes[len(runes)-tail:])
	}
	return text
}

// sortedKeys lists the keys of both, each once.
func sortedKeys[V any](a, b map[string]V) []string {
	var keys []string
	for k := range a {
		keys = append(keys, k)
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}
