package journal_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/journal"
	"github.com/watermill-once/watermill-once/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// model is what a row should be.
type model struct {
	there bool
	state string
	token int64 // 0: drawn for a person
	over  bool
}

// worker is somebody whose knowledge of the row may be old by the time it acts.
type worker struct {
	journal.Owner
	seen    journal.Found
	mayTake bool // it has seen the row of another
}

// Workers claim, renew, end and take over in every order, each on what it saw at some earlier time, while leases run out, a person
// resolves, and the row is deleted. Each answer, and the table after each step, is what the model says.
func TestModel(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	_, err := pool.Exec(t.Context(), dedupe.EffectsConfig{}.Schema())
	require.NoError(t, err)
	j, err := journal.New(pool, journal.Config{Lease: time.Hour})
	require.NoError(t, err)
	const runs, steps, workers = 50, 60, 3
	for range runs {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			g := &game{t, rand.New(rand.NewPCG(seed, 0)), pool, j, journal.ID{Consumer: "model", Key: fmt.Sprint(seed)}, model{}}
			table := make([]worker, workers)
			for i := range table {
				table[i].Owner = j.NewOwner(g.id)
			}
			for range steps {
				i := g.rand.IntN(workers)
				t.Log(i, g.step(&table[i]))
				g.requireRow()
			}
		})
	}
}

type game struct {
	t    *testing.T
	rand *rand.Rand
	pool *pgxpool.Pool
	j    *journal.Journal
	id   journal.ID
	model
}

// step has a worker do something and tells what.
func (g *game) step(w *worker) string {
	ctx, t := g.t.Context(), g.t
	started := g.there && g.state == journal.Started
	mine := started && g.token == w.Token()
	switch g.rand.IntN(10) {
	case 0, 1: // a run begins
		w.Owner = g.j.NewOwner(g.id)
		if !g.there {
			g.model = model{true, journal.Started, w.Token(), false}
		}
		found, err := w.Claim(ctx)
		require.NoError(t, err)
		token, state, over := found.Fields()
		require.Equal(t, g.state, state)
		require.Equal(t, g.over || g.state != journal.Started, over)
		require.Equal(t, g.token == w.Token(), token == w.Token())
		w.seen, w.mayTake = found, token != w.Token()
		return "claims, and finds it " + state
	case 2, 3, 4:
		if !w.mayTake {
			return "may not take over"
		}
		token, state, _ := w.seen.Fields()
		open := g.state == journal.Unknown || g.state == journal.Free || started && g.over
		taken, err := w.TakeOver(ctx, w.seen)
		require.NoError(t, err)
		require.Equal(t, g.there && open && token == g.token && state == g.state, taken)
		if taken {
			g.model, w.mayTake = model{true, journal.Started, w.Token(), false}, false
		}
		return fmt.Sprint("takes over: ", taken)
	case 5:
		held, err := w.Renew(ctx)
		require.NoError(t, err)
		require.Equal(t, mine, held)
		g.over = g.over && !held
		return fmt.Sprint("renews: ", held)
	case 6, 7:
		state := []string{journal.Done, journal.Failed, journal.Unknown, journal.Free}[g.rand.IntN(4)]
		again := g.there && g.token == w.Token() && g.state == state // as after a lost answer
		err := w.End(ctx, state, `"outcome"`, "text")
		if mine || again {
			require.NoError(t, err)
			g.state, g.over = state, false
		} else {
			require.ErrorIs(t, err, journal.ErrLeaseLost)
		}
		return fmt.Sprint("ends as ", state, ": ", err)
	case 8:
		g.exec(`update watermill_effects set lease_until = clock_timestamp() - interval '1 s' where key = $1 and state = 'started'`)
		g.over = g.over || started
		return "'s lease runs out"
	default:
		if g.rand.IntN(4) == 0 {
			g.exec(`delete from watermill_effects where key = $1`)
			g.model = model{}
			return "deletes the row"
		}
		err := g.j.InTx(ctx, func(tx pgx.Tx) error {
			return g.j.Resolve(ctx, tx, g.id, journal.Outcome{JSON: []byte(`"person"`)}, false)
		})
		if g.there && (g.state == journal.Unknown || started && g.over) {
			require.NoError(t, err)
			g.model = model{true, journal.Done, 0, false}
		} else {
			require.ErrorIs(t, err, journal.ErrNotUnknown)
		}
		return fmt.Sprint("resolves: ", err)
	}
}

func (g *game) exec(query string) {
	_, err := g.pool.Exec(g.t.Context(), query, g.id.Key)
	require.NoError(g.t, err)
}

// requireRow requires that the table is as the model.
func (g *game) requireRow() {
	var got model
	err := g.pool.QueryRow(g.t.Context(), `select true, state, token, coalesce(lease_until <= clock_timestamp(), false)
		from watermill_effects where key = $1`, g.id.Key).Scan(&got.there, &got.state, &got.token, &got.over)
	if !errors.Is(err, pgx.ErrNoRows) {
		require.NoError(g.t, err)
	}
	if g.token == 0 {
		got.token = 0
	}
	require.Equal(g.t, g.model, got)
}
