package outbox_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/outbox"
)

// The relay reads what it needs by an index, whatever the statistics say: with a full outbox a sort would read all of it for
// each page; with an empty one, whose sent messages a snapshot keeps, a join would walk over all that was sent.
func TestTheRelayWalksOverNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	requirePlans := func() {
		t.Helper()
		_, err := pool.Exec(t.Context(), `analyze watermill_outbox`)
		require.NoError(t, err)
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		_, err = conn.Exec(t.Context(), outbox.Settings)
		require.NoError(t, err)
		requireIndexScans := func(query string, args ...any) {
			t.Helper()
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				_, err = conn.Exec(t.Context(), "select set_config('plan_cache_mode', $1, false)", mode)
				require.NoError(t, err)
				plan := explain(t, conn, query, args...)
				for _, costly := range []string{"Seq Scan", "Sort", "Nested Loop", "Merge Join"} {
					require.NotContains(t, plan, costly)
				}
				// The keys of those that have had trouble are looked up in the index that is theirs.
				require.Regexp(t, "Index Scan using watermill_outbox_pkey on watermill_outbox", plan)
				require.NotRegexp(t, "watermill_outbox_pkey on watermill_outbox first", plan)
				require.NotRegexp(t, `Index Scan using \S+ on watermill_outbox[^\n]*\n\s*[^I\s]`, plan, "a whole index is read")
				require.NoError(t, conn.Conn().DeallocateAll(t.Context()))
			}
		}
		for i, query := range outbox.FetchSQL("outbox") {
			args := []any{0, []int64{}, 100}
			if i&4 != 0 {
				args = append(args, []int{1, 2})
			}
			if i&2 != 0 {
				args = append(args, []int64{3})
			}
			if i&1 != 0 {
				args = append(args, []string{"key-1"}, []int64{10})
			}
			requireIndexScans(query, args...)
		}
		requireIndexScans(outbox.RefillSQL("outbox"), 0, "key-1", 100, []int64{3})
		for _, count := range []int{1, 100, 2000} {
			offsets, texts := make([]int64, count), make([]string, count)
			for i := range count {
				offsets[i], texts[i] = int64(i), strconv.Itoa(i)
			}
			for _, settle := range outbox.SettleSQL("outbox") {
				requireIndexScans(settle, offsets, texts)
			}
			for _, note := range outbox.NoteSQL("outbox") {
				requireIndexScans(note, offsets, texts, make([]int32, count), texts, offsets, make([]bool, count))
			}
		}
	}

	publish(t, pool, numbered(5000, 100)...)
	requirePlans()

	// What was sent stays where it was until the snapshot goes.
	snapshot := begin(t, pool)
	_, err := snapshot.Exec(t.Context(), "set transaction isolation level repeatable read read only")
	require.NoError(t, err)
	_, err = snapshot.Exec(t.Context(), "select from watermill_outbox limit 1")
	require.NoError(t, err)
	for _, left := range []int{500, 50, 0} {
		_, err = pool.Exec(t.Context(), `delete from watermill_outbox where "offset" <= (select max("offset") from watermill_outbox) - $1`, left)
		require.NoError(t, err)
		requirePlans()
	}
}

// An analyze beside a snapshot that is held tells the planner that the outbox is empty. The relay must not read for each
// batch all that it has sent.
func TestASnapshotDoesNotHaveTheRelayReadWhatItSent(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	snapshot := begin(t, pool)
	_, err := snapshot.Exec(t.Context(), "set transaction isolation level repeatable read read only")
	require.NoError(t, err)
	_, err = snapshot.Exec(t.Context(), "select from pg_class limit 1")
	require.NoError(t, err)
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{})
	read := func() (entries int) {
		t.Helper()
		require.NoError(t, pool.QueryRow(t.Context(),
			`select idx_tup_read from pg_stat_all_indexes where indexrelname = 'watermill_outbox_pkey'`).Scan(&entries))
		return entries
	}
	const before, count = 20_000, 2000
	publish(t, pool, numbered(before, 1000)...)
	b.wait(t, before)
	_, err = pool.Exec(t.Context(), `analyze watermill_outbox`)
	require.NoError(t, err)
	var already int
	eventually(t, "the statistics are in", func() bool { already = read(); return already >= before })
	for i := range count / 100 {
		publish(t, pool, numbered(100, 100)...)
		b.wait(t, before+100*(i+1))
	}
	time.Sleep(2 * time.Second) // sessions report what they have read a second later
	require.Less(t, read()-already, 20*count)
}

func TestTheStockSubscriberReadsByTheIndex(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	publish(t, pool, numbered(5000, 100)...)
	_, err := pool.Exec(t.Context(), `analyze watermill_outbox`)
	require.NoError(t, err)
	plan := explain(t, pool, outbox.SchemaAdapter{}.SelectQuery("outbox", "", outbox.OffsetsAdapter{}).Query)
	require.Contains(t, plan, "Index Scan using watermill_outbox_pkey")
	require.NotContains(t, plan, "Sort")
	require.Contains(t, plan, "One-Time Filter", "a reader that is not at turn would read the whole table")
}

func explain(t *testing.T, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, query string, args ...any) (plan string) {
	t.Helper()
	rows, err := db.Query(t.Context(), "explain "+query, args...)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	for _, line := range lines {
		plan += line + "\n"
	}
	return plan
}
