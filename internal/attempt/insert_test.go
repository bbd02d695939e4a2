package attempt

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func lock(id int64) *int64 { return &id }

func row(table, uuid string, lock *int64, payload int) Row {
	return Row{Table: table, UUID: uuid, Topic: "topic", Key: "key", Payload: make([]byte, payload), Metadata: "{}", Lock: lock}
}

func TestInsertNothing(t *testing.T) {
	t.Parallel()
	require.Empty(t, Insert(nil))
}

func TestInsertOneRow(t *testing.T) {
	t.Parallel()
	for _, l := range []*int64{lock(7), nil} {
		statements := Insert([]Row{row(`"a"`, "u", l, 3)})
		require.Len(t, statements, 1)
		require.Contains(t, statements[0].SQL, `insert into "a"`)
		if l == nil {
			require.Nil(t, statements[0].Args[5])
		} else {
			require.Equal(t, int64(7), statements[0].Args[5])
		}
	}
}

// A few rows have a statement for their number, in which no lock is null unless all are.
func TestInsertFewRows(t *testing.T) {
	t.Parallel()
	rows := []Row{row(`"a"`, "1", lock(9), 1), row(`"a"`, "2", lock(3), 0), row(`"a"`, "3", nil, 2), row(`"a"`, "4", lock(9), 0)}
	statements := Insert(rows)
	require.Len(t, statements, 1)
	require.Equal(t, statements[0], InsertOne(rows))
	require.Len(t, statements[0].Args, 6*len(rows))
	require.Equal(t, []any{"1", "topic", "key", []byte{0}, "{}", "2"}, statements[0].Args[:6])
	require.Equal(t, []any{int64(3), int64(9), int64(9), int64(9)}, statements[0].Args[5*len(rows):])
	require.Equal(t, `insert into "a" (transaction_id, uuid, topic, key, payload, metadata)
values (case when pg_advisory_xact_lock($11::bigint) is null or pg_advisory_xact_lock($12::bigint) is null `+
		`then pg_current_xact_id() else pg_current_xact_id() end, $1::text, $2::text, $3::text, $4::bytea, $5::json),
    (pg_current_xact_id(), $6::text, $7::text, $8::text, $9::bytea, $10::json)`, Insert(rows[:2])[0].SQL)
	require.Equal(t, []any{nil, nil}, Insert([]Row{rows[2], rows[2]})[0].Args[10:])
}

// Of more rows the statement is prepared once, whatever the count.
func TestInsertManyRowsOfOneTableHaveOneText(t *testing.T) {
	t.Parallel()
	rows := slices.Repeat([]Row{row(`"a"`, "1", lock(9), 1), row(`"a"`, `"2\`, lock(3), 0), row(`"a"`, "3", nil, 2)}, 6)
	statements := Insert(rows)
	require.Len(t, statements, 1)
	require.Equal(t, statements[0].SQL, Insert(rows[1:])[0].SQL)
	require.Equal(t, statements[0], InsertOne(rows))
	require.Equal(t, "{3,9}", statements[0].Args[0])
	require.True(t, strings.HasPrefix(statements[0].Args[1].(string), `{"1","\"2\\","3",`))
	require.Equal(t, make([]byte, 18), statements[0].Args[4])
	require.True(t, strings.HasPrefix(statements[0].Args[5].(string), "{1,2,2,4,"))
	require.True(t, strings.HasPrefix(statements[0].Args[6].(string), "{1,0,2,1,"))
}

// All locks come before all offsets, sorted over the tables.
func TestInsertRowsOfSeveralTables(t *testing.T) {
	t.Parallel()
	statements := Insert([]Row{row(`"b"`, "1", lock(9), 0), row(`"a"`, "2", lock(3), 0), row(`"b"`, "3", lock(5), 0), row(`"c"`, "4", nil, 0)})
	require.Len(t, statements, 4)
	require.Equal(t, Statement{SQL: takeLocks, Args: []any{"{3,5,9}"}}, statements[0])
	require.Contains(t, statements[1].SQL, `insert into "b"`)
	require.Equal(t, "1", statements[1].Args[0])
	require.Equal(t, "3", statements[1].Args[5])
	require.Equal(t, []any{nil, nil}, statements[1].Args[10:])
	require.Contains(t, statements[2].SQL, `insert into "a"`)
	require.Nil(t, statements[2].Args[5])
	require.Contains(t, statements[3].SQL, `insert into "c"`)

	statements = Insert([]Row{row(`"b"`, "1", nil, 0), row(`"a"`, "2", nil, 0)})
	require.Len(t, statements, 2, "there is nothing to lock")
}

func TestInsertLargeRowsIsCutUp(t *testing.T) {
	t.Parallel()
	var rows []Row
	for i, payload := range []int{chunkBytes / 2, chunkBytes / 4, chunkBytes / 2, 2 * chunkBytes, 1, 1} {
		rows = append(rows, row(`"a"`, string(rune('0'+i)), lock(int64(10-i)), payload))
	}
	statements := Insert(rows)
	require.Len(t, statements, 5)
	require.Equal(t, []any{"{5,6,7,8,9,10}"}, statements[0].Args)
	require.Equal(t, "0", statements[1].Args[0])
	require.Equal(t, "1", statements[1].Args[5])
	require.Equal(t, "2", statements[2].Args[0])
	require.Equal(t, "3", statements[3].Args[0])
	require.Equal(t, "4", statements[4].Args[0])
	require.Equal(t, "5", statements[4].Args[5])
	require.Len(t, Insert(rows[3:4]), 1, "one row cannot be cut up")
}

func FuzzAppendQuoted(f *testing.F) {
	for _, text := range []string{"", "plain", `"`, `\`, `a"b\c`, `\"`, "NULL", "{,}"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		quoted := string(appendQuoted(nil, text))
		require.True(t, strings.HasPrefix(quoted, `"`) && strings.HasSuffix(quoted, `"`))
		// What PostgreSQL does: a backslash stands for the character behind it.
		var read []byte
		inner := quoted[1 : len(quoted)-1]
		for i := 0; i < len(inner); i++ {
			require.NotEqual(t, byte('"'), inner[i], "the element ends early")
			if inner[i] == '\\' {
				i++
			}
			read = append(read, inner[i])
		}
		require.Equal(t, text, string(read))
	})
}

func TestJoinMetadataIsJSON(t *testing.T) {
	t.Parallel()
	rows := slices.Repeat([]Row{{Metadata: `{"a":"b"}`}}, 3)
	var objects []map[string]string
	require.NoError(t, json.Unmarshal([]byte(joinMetadata(rows)), &objects))
	require.Len(t, objects, 3)
}

func BenchmarkInsert(b *testing.B) {
	for name, count := range map[string]int{"one": 1, "hundred": 100} {
		rows := slices.Repeat([]Row{row(`"a"`, "0197c6a0-aaaa-bbbb-cccc-ddddeeeeffff", lock(9), 300)}, count)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Insert(rows)
			}
		})
	}
}
