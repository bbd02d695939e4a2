package ordering_test

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/ordering"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// newURL is that of a database with the default tables.
func newURL(t *testing.T) string {
	return pgtest.FromTemplate(t, "ordering", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, ordering.Config{}.Schema())
		return err
	})
}

func begin(t *testing.T, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

// step is one event at one entity.
type step struct {
	version int64
	tie     string
	id      string
	clock   bool
	want    bool
}

func TestGuard(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	const forget = "forget"
	tests := map[string][]step{
		"newer, older": {
			{version: 2, id: "e2", want: true}, {version: 1, id: "e1", want: false}, {version: 3, id: "e3", want: true},
		},
		"equal numbers: the later is stale": {
			{version: 2, id: "e2", want: true}, {version: 2, id: "e2", want: false}, {version: 2, id: "other", want: false},
		},
		"equal times: another event applies": {
			{version: 2, id: "e2", clock: true, want: true}, {version: 2, id: "e2", clock: true, want: false},
			{version: 2, id: "other", clock: true, want: true}, {version: 2, id: "other", clock: true, want: false},
		},
		"older times": {
			{version: 2, id: "e2", clock: true, want: true}, {version: 1, id: "e1", clock: true, want: false},
		},
		"tie-breaks": {
			{version: 2, tie: "b", id: "e1", want: true}, {version: 2, tie: "a", id: "e2", want: false}, {version: 2, tie: "b", id: "e3", want: false},
			{version: 2, tie: "c", id: "e4", want: true}, {version: 1, tie: "z", id: "e5", want: false}, {version: 3, tie: "a", id: "e6", want: true},
		},
		"tie-breaks of times": {
			{version: 2, tie: "b", id: "e1", clock: true, want: true}, {version: 2, tie: "a", id: "e2", clock: true, want: false},
			{version: 2, tie: "b", id: "e1", clock: true, want: false}, {version: 2, tie: "b", id: "e3", clock: true, want: true},
		},
		"tie-breaks are compared bytewise": {
			{version: 2, tie: "Z", id: "e1", want: true}, {version: 2, tie: "a", id: "e2", want: true}, {version: 2, tie: "B", id: "e3", want: false},
			{version: 2, tie: "aa", id: "e4", want: true}, {version: 2, tie: "é", id: "e5", want: true}, {version: 2, tie: "z", id: "e6", want: false},
		},
		"a tie-break where there was none": {
			{version: 2, id: "e1", want: true}, {version: 2, tie: "a", id: "e2", want: true}, {version: 2, id: "e3", want: false},
		},
		"without an event id": {
			{version: 2, want: true}, {version: 2, want: false}, {version: 2, id: "e1", want: false}, {version: 3, want: true},
		},
		"times without an event id: none is known to be a repeat": {
			{version: 2, clock: true, want: true}, {version: 2, clock: true, want: true}, {version: 2, id: "e1", clock: true, want: true},
			{version: 2, clock: true, want: true}, {version: 1, clock: true, want: false},
		},
		"forgotten": {
			{version: 2, id: "e2", want: true}, {id: forget}, {version: 1, id: "e1", want: false}, {version: 2, id: "e2", want: true},
			{version: 2, id: "e2", want: false},
		},
		"forgotten time": {
			{version: 2, id: "e2", clock: true, want: true}, {id: forget}, {version: 2, id: "e2", clock: true, want: true},
			{version: 2, id: "e2", clock: true, want: false},
		},
		"forgotten, smaller tie-break": {
			{version: 2, tie: "b", id: "e2", want: true}, {id: forget}, {version: 2, tie: "a", id: "e1", want: false}, {version: 2, tie: "b", id: "e2", want: true},
		},
		"the ends of the range": {
			{version: math.MinInt64, id: "e1", want: true}, {version: math.MaxInt64, id: "e2", want: true}, {version: math.MinInt64, id: "e3", want: false},
		},
		"negative": {
			{version: -2, id: "e1", want: true}, {version: -3, id: "e2", want: false}, {version: -1, id: "e3", want: true},
		},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i, s := range steps {
				if s.id == forget {
					_, err := pool.Exec(t.Context(), "update watermill_entity_versions set event_id = null where consumer = $1", name)
					require.NoError(t, err)
					continue
				}
				tx := begin(t, pool)
				p := ordering.Position{Entity: "card", Version: s.version, TieBreak: s.tie, Clock: s.clock}
				applies, err := ordering.Config{}.Guard(t.Context(), tx, name, p, s.id)
				require.NoError(t, err)
				require.Equal(t, s.want, applies, "step %d", i+1)
				require.NoError(t, tx.Commit(t.Context()))
			}
		})
	}
}

func TestGuardChecksItsArguments(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	tx := begin(t, pool)
	good := ordering.Position{Entity: "card"}
	for _, p := range []ordering.Position{{}, {Entity: "\xff"}, {Entity: "card", TieBreak: "\x00"}, {Entity: strings.Repeat("x", 513)}} {
		_, err := ordering.Config{}.Guard(t.Context(), tx, "cards", p, "e1")
		require.ErrorIs(t, err, ordering.ErrInvalidPosition)
	}
	_, err := ordering.Config{}.Guard(t.Context(), tx, "", good, "e1")
	require.ErrorContains(t, err, "consumer")
	_, err = ordering.Config{}.Guard(t.Context(), tx, "cards", good, "\x00")
	require.ErrorContains(t, err, "event id")
	_, err = ordering.Config{Table: "a.b.c"}.Guard(t.Context(), tx, "cards", good, "e1")
	require.ErrorContains(t, err, "Table")
	require.EqualValues(t, 'T', tx.Conn().PgConn().TxStatus(), "refused before it reached the server")

	_, err = tx.Exec(t.Context(), ordering.Config{}.GuardSQL(), "cards", "", 1, "", "e1", false)
	require.ErrorContains(t, err, "23514", "the table itself refuses an entity that all would share")
}

// row is the model of one entity's row.
type row struct {
	version   int64
	tie, id   string
	forgotten bool
}

// TestGuardModel holds the statement against the rules, said once more in Go.
func TestGuardModel(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	guard := ordering.Config{}.GuardSQL()
	consumers := 0
	rapid.Check(t, func(t *rapid.T) {
		consumers++
		consumer := fmt.Sprint("c", consumers)
		model := map[string]row{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			entity := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "entity")
			old, known := model[entity]
			if rapid.IntRange(0, 9).Draw(t, "forget") == 0 {
				_, err := pool.Exec(context.Background(),
					"update watermill_entity_versions set event_id = null where consumer = $1 and entity = $2", consumer, entity)
				require.NoError(t, err)
				if known {
					old.id, old.forgotten = "", true
					model[entity] = old
				}
				continue
			}
			next := row{
				version: rapid.Int64Range(-1, 2).Draw(t, "version"),
				tie:     rapid.SampledFrom([]string{"", "B", "a", "é"}).Draw(t, "tie"),
				id:      rapid.SampledFrom([]string{"", "e1", "e2"}).Draw(t, "id"),
			}
			clock := rapid.Bool().Draw(t, "clock")
			applies := true
			if known {
				switch {
				case next.version != old.version:
					applies = next.version > old.version
				case next.tie != old.tie:
					applies = next.tie > old.tie
				case old.forgotten:
				case clock:
					applies = next.id == "" || next.id != old.id
				default:
					applies = false
				}
			}
			var id any = next.id
			if next.id == "" && rapid.Bool().Draw(t, "null") {
				id = nil
			}
			tag, err := pool.Exec(context.Background(), guard, consumer, entity, next.version, next.tie, id, clock)
			require.NoError(t, err)
			require.Equal(t, applies, tag.RowsAffected() == 1, "%+v over %+v (known: %t, clock: %t)", next, old, known, clock)
			if applies {
				model[entity] = next
			}
		}
	})
}

func TestGuardOnEveryDriver(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	steps := []step{
		{version: math.MaxInt64 - 1, tie: `it's a "\ $1`, id: "e1", clock: true, want: true},
		{version: math.MaxInt64 - 1, tie: `it's a "\ $1`, id: "e1", clock: true, want: false},
		{version: math.MaxInt64 - 1, tie: `it's a "\ $1`, id: "", clock: true, want: true},
		{version: math.MinInt64, id: "e2", want: false},
		{version: math.MaxInt64, id: "e2", want: true},
	}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			config, err := pgxpool.ParseConfig(url)
			require.NoError(t, err)
			config.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			tx := begin(t, pool)
			for i, s := range steps {
				p := ordering.Position{Entity: "card", Version: s.version, TieBreak: s.tie, Clock: s.clock}
				applies, err := ordering.Config{}.Guard(t.Context(), tx, mode.String(), p, s.id)
				require.NoError(t, err)
				require.Equal(t, s.want, applies, "step %d", i+1)
			}
			_, err = tx.Exec(t.Context(), ordering.Config{}.GuardSQL(), mode.String(), "null", int64(1), "", nil, false)
			require.NoError(t, err)
		})
	}
	for _, driver := range []string{"pgx", "postgres"} {
		t.Run("database/sql "+driver, func(t *testing.T) {
			t.Parallel()
			db, err := sql.Open(driver, url)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			require.NoError(t, err)
			for i, s := range steps {
				p := ordering.Position{Entity: "card", Version: s.version, TieBreak: s.tie, Clock: s.clock}
				applies, err := ordering.Config{}.GuardSQLTx(t.Context(), tx, driver, p, s.id)
				require.NoError(t, err)
				require.Equal(t, s.want, applies, "step %d", i+1)
			}
			_, err = tx.ExecContext(t.Context(), ordering.Config{}.GuardSQL(), driver, "null", int64(1), "", nil, false)
			require.NoError(t, err)
			require.NoError(t, tx.Commit())
		})
	}
}

// Two events of one entity never pass at once: the second waits, even if it is stale, and is compared with what the
// first has committed.
func TestGuardWaitsForARival(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		for name, test := range map[string]struct {
			commit bool
			second int64
			want   bool
		}{
			"older after a commit":   {true, 1, false},
			"newer after a commit":   {true, 3, true},
			"older after a rollback": {false, 1, true},
			"equal after a rollback": {false, 2, true},
		} {
			t.Run(fmt.Sprintf("%s, known %t", name, known), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.PoolOn(t, newURL(t))
				if known {
					_, err := pool.Exec(t.Context(), ordering.Config{}.GuardSQL(), "cards", "card", 0, "", "e0", false)
					require.NoError(t, err)
				}
				first, second := begin(t, pool), begin(t, pool)
				applies, err := ordering.Config{}.Guard(t.Context(), first, "cards", ordering.Position{Entity: "card", Version: 2}, "e2")
				require.NoError(t, err)
				require.True(t, applies)

				pid := second.Conn().PgConn().PID()
				var secondErr error
				done := make(chan struct{})
				go func() {
					defer close(done)
					applies, secondErr = ordering.Config{}.Guard(t.Context(), second, "cards", ordering.Position{Entity: "card", Version: test.second}, "e")
				}()
				waitForLock(t, pool, pid)
				if test.commit {
					require.NoError(t, first.Commit(t.Context()))
				} else {
					require.NoError(t, first.Rollback(t.Context()))
				}
				<-done
				require.NoError(t, secondErr)
				require.Equal(t, test.want, applies)
			})
		}
	}
}

// A stale event holds the entity too: what its handler's rivals see does not change under them.
func TestStaleEventHoldsTheEntity(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	_, err := pool.Exec(t.Context(), ordering.Config{}.GuardSQL(), "cards", "card", 2, "", "e2", false)
	require.NoError(t, err)
	first, second := begin(t, pool), begin(t, pool)
	applies, err := ordering.Config{}.Guard(t.Context(), first, "cards", ordering.Position{Entity: "card", Version: 1}, "e1")
	require.NoError(t, err)
	require.False(t, applies)
	_, err = second.Exec(t.Context(), "set local lock_timeout = 1")
	require.NoError(t, err)
	_, err = ordering.Config{}.Guard(t.Context(), second, "cards", ordering.Position{Entity: "card", Version: 3}, "e3")
	require.ErrorContains(t, err, "55P03")
}

// Many events of few entities, in any order and all at once: each entity only goes forwards and ends at its newest.
func TestGuardUnderLoad(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, newURL(t))
	_, err := pool.Exec(t.Context(), `create table applied (
		id bigint primary key generated always as identity, entity text, version bigint, tie_break text collate "C")`)
	require.NoError(t, err)

	const entities, versions = 4, 40
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var events []ordering.Position
	for i := range entities * versions {
		events = append(events, ordering.Position{
			Entity: fmt.Sprint("card", i%entities), Version: int64(i / entities / 2), TieBreak: string(rune('a' + i/entities%2)),
		})
	}
	random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })

	queue := make(chan ordering.Position, len(events))
	for _, e := range events {
		queue <- e
	}
	close(queue)
	apply := func(p ordering.Position) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			id := fmt.Sprint(p.Entity, p.Version, p.TieBreak)
			applies, err := ordering.Config{}.Guard(t.Context(), tx, "cards", p, id)
			if err != nil || !applies {
				return err
			}
			_, err = tx.Exec(t.Context(), "insert into applied (entity, version, tie_break) values ($1, $2, $3)", p.Entity, p.Version, p.TieBreak)
			return err
		})
	}
	faults := make(chan error, len(events))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for p := range queue {
				if err := apply(p); err != nil {
					faults <- err
				}
			}
		})
	}
	wg.Wait()
	close(faults)
	require.NoError(t, <-faults)

	var backwards, newest int
	require.NoError(t, pool.QueryRow(t.Context(), `
select count(*)
from (select (version, tie_break) <= lag((version, tie_break)) over (partition by entity order by id) as back from applied) a
where back`).Scan(&backwards))
	require.Zero(t, backwards)
	require.NoError(t, pool.QueryRow(t.Context(), `
select count(*)
from watermill_entity_versions
where version = $1 and tie_break = 'b' and event_id = entity || version || tie_break`, versions/2-1).Scan(&newest))
	require.Equal(t, entities, newest)
}

// waitForLock returns when the backend waits for a lock.
func waitForLock(t *testing.T, pool *pgxpool.Pool, pid uint32) {
	t.Helper()
	require.Eventually(t, func() bool {
		var waits bool
		err := pool.QueryRow(t.Context(), "select exists (select from pg_locks where pid = $1 and not granted)", int64(pid)).Scan(&waits)
		return err == nil && waits
	}, 20*time.Second, 2*time.Millisecond)
}
