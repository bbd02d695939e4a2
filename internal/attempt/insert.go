package attempt

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// chunkBytes is how much text and payload one insert carries at most, unless a single row is larger: both ends hold
// a statement's arguments in memory several times over, and PostgreSQL refuses a message of a gigabyte.
const chunkBytes = 16 << 20

// Insert gives the statements that write the rows of one attempt, to be sent in this order.
//
// Every lock is taken before the first offset is drawn, over all tables, in the order of the lock ids: so two attempts
// never wait for each other, and of two attempts that write one key, the one that draws its offset later also commits
// later. The transaction gets its id before its first offset, which the relay relies on when it tells which offsets
// can no longer appear.
func Insert(rows []Row) []Statement {
	switch len(rows) {
	case 0:
		return nil
	case 1:
		return []Statement{insertRow(&rows[0], rows[0].Lock)}
	}
	locks := locksOf(rows)
	chunks := split(rows)
	if len(chunks) == 1 {
		return []Statement{insertRows(rows, locks)}
	}
	statements := make([]Statement, 0, 1+len(chunks))
	if len(locks) > 0 {
		statements = append(statements, Statement{SQL: takeLocks, Args: []any{integers(locks)}})
	}
	for _, chunk := range chunks {
		if len(chunk) == 1 {
			statements = append(statements, insertRow(&chunk[0], nil))
		} else {
			statements = append(statements, insertRows(chunk, nil))
		}
	}
	return statements
}

// InsertOne gives one statement for rows of one table, however many and large they are: for callers that cannot send
// several.
func InsertOne(rows []Row) Statement {
	if len(rows) == 1 {
		return insertRow(&rows[0], rows[0].Lock)
	}
	return insertRows(rows, locksOf(rows))
}

// locksOf gives the ids of the locks that the rows need, sorted, each once.
func locksOf(rows []Row) []int64 {
	locks := make([]int64, 0, len(rows))
	for i := range rows {
		if lock := rows[i].Lock; lock != nil {
			locks = append(locks, *lock)
		}
	}
	slices.Sort(locks)
	return slices.Compact(locks)
}

// split groups the rows by table, and each table's rows into what one statement carries. Rows of one table keep their
// order.
func split(rows []Row) [][]Row {
	if fitsOne(rows) {
		return [][]Row{rows}
	}
	var tables []string
	of := make(map[string][]Row)
	for _, row := range rows {
		if _, known := of[row.Table]; !known {
			tables = append(tables, row.Table)
		}
		of[row.Table] = append(of[row.Table], row)
	}
	var chunks [][]Row
	for _, table := range tables {
		rest, first, bytes := of[table], 0, 0
		for i := range rest {
			if i > first && bytes+rest[i].size() > chunkBytes {
				chunks = append(chunks, rest[first:i])
				first, bytes = i, 0
			}
			bytes += rest[i].size()
		}
		chunks = append(chunks, rest[first:])
	}
	return chunks
}

func fitsOne(rows []Row) bool {
	bytes := 0
	for i := range rows {
		bytes += rows[i].size()
		if rows[i].Table != rows[0].Table || bytes > chunkBytes && i > 0 {
			return false
		}
	}
	return true
}

func (r *Row) size() int {
	return len(r.UUID) + len(r.Topic) + len(r.Key) + len(r.Payload) + len(r.Metadata)
}

// insertRow writes one row.
func insertRow(row *Row, lock *int64) Statement {
	var id any
	if lock != nil {
		id = *lock
	}
	return Statement{
		SQL:  sqlOf(row.Table).insertFew[1],
		Args: []any{row.UUID, row.Topic, row.Key, row.Payload, row.Metadata, id},
	}
}

// insertRows writes rows of one table.
func insertRows(rows []Row, locks []int64) Statement {
	if len(rows) <= few {
		return insertFew(rows, locks)
	}
	return insertMany(rows, locks)
}

// few is up to how many rows are written by a statement that has its own text for each number of rows. It costs two thirds of
// the one for any number, and connections keep so many texts prepared.
const few = 16

// insertFew takes one lock for each row, the last one again where there are fewer. None is null where another is not: the
// function is strict, so a planner may know the condition from a null alone, and leave out the other calls.
func insertFew(rows []Row, locks []int64) Statement {
	args := make([]any, 0, 6*len(rows))
	for i := range rows {
		row := &rows[i]
		args = append(args, row.UUID, row.Topic, row.Key, row.Payload, row.Metadata)
	}
	for i := range rows {
		if len(locks) == 0 {
			args = append(args, nil)
		} else {
			args = append(args, locks[min(i, len(locks)-1)])
		}
	}
	return Statement{SQL: sqlOf(rows[0].Table).insertFew[len(rows)], Args: args}
}

// insertMany has arguments that are text and bytes only, arrays being passed as their text: the one form that every exec mode
// of pgx, database/sql and lib/pq take alike.
func insertMany(rows []Row, locks []int64) Statement {
	payloads, starts, lengths := joinPayloads(rows)
	return Statement{
		SQL: sqlOf(rows[0].Table).insertMany,
		Args: []any{
			integers(locks),
			texts(rows, func(r *Row) string { return r.UUID }),
			texts(rows, func(r *Row) string { return r.Topic }),
			texts(rows, func(r *Row) string { return r.Key }),
			payloads, starts, lengths,
			joinMetadata(rows),
		},
	}
}

// takeLocks locks in the order of the array: an aggregate without an order of its own reads its input as it comes.
const takeLocks = `select count(pg_advisory_xact_lock(id))
from unnest($1::bigint[]) as id`

// insertFewInto has no subplan, for it is half of what an outbox costs: the values are computed row by row, and in the order of
// the table's columns, of which transaction_id is the first and the offset the second. So all locks and the transaction's id are
// there before the first offset is drawn. The function is strict: a null lock takes none.
func insertFewInto(table string, n int) string {
	var b strings.Builder
	b.WriteString("insert into " + table + " (transaction_id, uuid, topic, key, payload, metadata)\nvalues (case when ")
	for i := range n {
		if i > 0 {
			b.WriteString(" or ")
		}
		fmt.Fprintf(&b, "pg_advisory_xact_lock($%d::bigint) is null", 5*n+i+1)
	}
	b.WriteString(" then pg_current_xact_id() else pg_current_xact_id() end")
	for i := range n {
		if i > 0 {
			b.WriteString(",\n    (pg_current_xact_id()")
		}
		fmt.Fprintf(&b, ", $%d::text, $%d::text, $%d::text, $%d::bytea, $%d::json)", 5*i+1, 5*i+2, 5*i+3, 5*i+4, 5*i+5)
	}
	return b.String()
}

// insertManyInto has one text for any number of rows, so that it stays prepared. Nothing is left to the planner: the
// columns' defaults, the offset among them, are computed above the join with the locks and above the sort.
const insertManyInto = `with locked as materialized (
    select count(pg_advisory_xact_lock(id))
    from unnest($1::bigint[]) as id
)
insert into @table (transaction_id, uuid, topic, key, payload, metadata)
select xid, m.uuid, m.topic, m.key, substr($5::bytea, m.start, m.length), m.metadata
from locked, pg_current_xact_id() as xid, rows from (
    unnest($2::text[], $3::text[], $4::text[], $6::integer[], $7::integer[]),
    json_array_elements($8::json)
) with ordinality as m (uuid, topic, key, start, length, metadata, place)
order by m.place`

// tableSQL is what is sent for one table.
type tableSQL struct {
	insertFew  [few + 1]string // by the number of rows
	insertMany string
}

// The texts are built once a table. Reading them takes no lock: every message passes here.
var (
	tableSQLs     atomic.Pointer[map[string]*tableSQL]
	tableSQLsLock sync.Mutex
)

func sqlOf(table string) *tableSQL {
	if known := tableSQLs.Load(); known != nil {
		if s, ok := (*known)[table]; ok {
			return s
		}
	}
	tableSQLsLock.Lock()
	defer tableSQLsLock.Unlock()
	s := &tableSQL{insertMany: strings.Replace(insertManyInto, "@table", table, 1)}
	for n := 1; n <= few; n++ {
		s.insertFew[n] = insertFewInto(table, n)
	}
	next := make(map[string]*tableSQL)
	if known := tableSQLs.Load(); known != nil {
		maps.Copy(next, *known)
	}
	next[table] = s
	tableSQLs.Store(&next)
	return s
}

// joinPayloads gives all payloads as one value, and where each starts (counted from one) and how long it is: arrays of
// bytea are not safe on every driver.
func joinPayloads(rows []Row) (payloads []byte, starts, lengths string) {
	size := 0
	for i := range rows {
		size += len(rows[i].Payload)
	}
	payloads = make([]byte, 0, size)
	from := make([]int64, len(rows))
	length := make([]int64, len(rows))
	for i := range rows {
		from[i] = int64(len(payloads)) + 1
		length[i] = int64(len(rows[i].Payload))
		payloads = append(payloads, rows[i].Payload...)
	}
	return payloads, integers(from), integers(length)
}

// joinMetadata gives a JSON array of the rows' metadata.
func joinMetadata(rows []Row) string {
	size := 2
	for i := range rows {
		size += len(rows[i].Metadata) + 1
	}
	var b strings.Builder
	b.Grow(size)
	b.WriteByte('[')
	for i := range rows {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(rows[i].Metadata)
	}
	b.WriteByte(']')
	return b.String()
}

// integers writes an array as PostgreSQL reads it.
func integers(values []int64) string {
	b := make([]byte, 0, 2+len(values)*8)
	b = append(b, '{')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return string(append(b, '}'))
}

// texts writes one field of the rows as an array.
func texts(rows []Row, field func(*Row) string) string {
	size := 2
	for i := range rows {
		size += len(field(&rows[i])) + 3
	}
	b := make([]byte, 0, size)
	b = append(b, '{')
	for i := range rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendQuoted(b, field(&rows[i]))
	}
	return string(append(b, '}'))
}

// appendQuoted writes an array's element. Inside quotes, only the quote and the backslash mean something.
func appendQuoted(b []byte, text string) []byte {
	b = append(b, '"')
	for {
		i := strings.IndexAny(text, `"\`)
		if i < 0 {
			break
		}
		b = append(b, text[:i]...)
		b = append(b, '\\', text[i])
		text = text[i+1:]
	}
	b = append(b, text...)
	return append(b, '"')
}
