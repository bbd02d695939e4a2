package dedupe_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
)

// effectsURL is that of a database with the journal.
func effectsURL(t testing.TB) string {
	return pgtest.FromTemplate(t, "effects", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, dedupe.EffectsConfig{}.Schema())
		return err
	})
}

// journal is an Effects on a database of its own.
type journal struct {
	*dedupe.Effects
	t    testing.TB
	url  string
	pool *pgxpool.Pool
}

func newJournal(t testing.TB, config dedupe.EffectsConfig) *journal {
	t.Helper()
	url := effectsURL(t)
	pool := pgtest.PoolOn(t, url)
	return &journal{openEffects(t, pool, config), t, url, pool}
}

func openEffects(t testing.TB, pool *pgxpool.Pool, config dedupe.EffectsConfig) *dedupe.Effects {
	t.Helper()
	e, err := dedupe.NewEffects(pool, config)
	require.NoError(t, err)
	return e
}

// with is another process on the same journal, configured otherwise.
func (j *journal) with(config dedupe.EffectsConfig) *journal {
	j.t.Helper()
	return &journal{openEffects(j.t, j.pool, config), j.t, j.url, j.pool}
}

type receipt struct {
	ID     string
	Amount int
}

// charge is a call that succeeds and counts.
func charge(calls *int, id string) func(context.Context, string) (receipt, error) {
	return func(context.Context, string) (receipt, error) {
		*calls++
		return receipt{id, 100}, nil
	}
}

func fail(err error) func(context.Context, string) (receipt, error) {
	return func(context.Context, string) (receipt, error) { return receipt{}, err }
}

func (j *journal) exec(query string, args ...any) {
	j.t.Helper()
	_, err := j.pool.Exec(context.Background(), query, args...)
	require.NoError(j.t, err)
}

// expire lets the lease of a key run out.
func (j *journal) expire(key string) {
	j.t.Helper()
	j.exec(`update watermill_effects set lease_until = clock_timestamp() - interval '1 s' where key = $1 and state = 'started'`, key)
}

func (j *journal) state(key string) (state string) {
	j.t.Helper()
	err := j.pool.QueryRow(context.Background(), `select state from watermill_effects where key = $1`, key).Scan(&state)
	require.NoError(j.t, err)
	return state
}

func (j *journal) requireCounts(running, unknown, free int) {
	j.t.Helper()
	counts, err := j.Count(context.Background())
	require.NoError(j.t, err)
	require.Equal(j.t, dedupe.EffectCounts{Running: running, Unknown: unknown, Free: free}, counts)
}

func TestDoCallsOnce(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	calls := 0
	for range 3 {
		got, err := dedupe.Do(t.Context(), j.Effects, "order-1", 100, charge(&calls, "r1"))
		require.NoError(t, err)
		require.Equal(t, receipt{"r1", 100}, got)
	}
	require.Equal(t, 1, calls)
	got, err := dedupe.Do(t.Context(), j.Effects, "order-2", 100, func(ctx context.Context, key string) (receipt, error) {
		require.Equal(t, "order-2", key)
		j.requireCounts(1, 0, 0)
		return charge(&calls, "r2")(ctx, key)
	})
	require.NoError(t, err)
	require.Equal(t, "r2", got.ID)

	billing := j.with(dedupe.EffectsConfig{Consumer: "billing"})
	got, err = dedupe.Do(t.Context(), billing.Effects, "order-1", 7, charge(&calls, "r3"))
	require.NoError(t, err)
	require.Equal(t, "r3", got.ID, "the scope is the consumer")
	j.requireCounts(0, 0, 0)
}

func TestDoAfterAnError(t *testing.T) {
	t.Parallel()
	timeout := errors.New("timeout")
	for name, test := range map[string]struct {
		err   error
		state string
	}{
		"plain":    {timeout, "unknown"},
		"not done": {dedupe.NotDone(timeout), "free"},
		"final":    {dedupe.Final(timeout), "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJournal(t, dedupe.EffectsConfig{})
			_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(test.err))
			require.ErrorIs(t, err, timeout)
			require.Equal(t, test.state, j.state("k"))

			calls := 0
			again := func(e *journal) error {
				_, err := dedupe.Do(t.Context(), e.Effects, "k", nil, charge(&calls, "r"))
				return err
			}
			refuse := j.with(dedupe.EffectsConfig{OnUnknown: dedupe.Refuse})
			switch test.state {
			case "unknown":
				require.ErrorIs(t, again(refuse), dedupe.ErrUnknown)
				require.NoError(t, again(j))
				require.Equal(t, 1, calls)
			case "free":
				require.NoError(t, again(refuse))
				require.Equal(t, 1, calls)
			case "failed":
				for _, e := range []*journal{refuse, j} {
					var final *dedupe.FinalError
					require.ErrorAs(t, again(e), &final)
					require.Equal(t, "timeout", final.Text)
				}
				require.Zero(t, calls)
			}
		})
	}
	require.NoError(t, dedupe.Final(nil))
	require.NoError(t, dedupe.NotDone(nil))
}

func TestLeaseOutlivesACallLongerThanIt(t *testing.T) {
	t.Parallel()
	config := dedupe.EffectsConfig{Lease: 200 * time.Millisecond, Wait: -1}
	j := newJournal(t, config)
	calls := 0
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(ctx context.Context, key string) (receipt, error) {
		began := time.Now()
		for time.Since(began) < 3*config.Lease {
			_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, charge(&calls, "other"))
			require.ErrorIs(t, err, dedupe.ErrInFlight)
		}
		require.NoError(t, ctx.Err())
		return receipt{ID: "mine"}, nil
	})
	require.NoError(t, err)
	require.Zero(t, calls)
}

func TestNewEffectsTellsAllFaults(t *testing.T) {
	t.Parallel()
	_, err := dedupe.NewEffects(nil, dedupe.EffectsConfig{
		Consumer: "a\x00", Table: "a.b.c", Lease: time.Millisecond, OnUnknown: dedupe.Probe,
	})
	for _, fault := range []string{"pool is nil", "Consumer", "Table", "Lease", "Probe is nil"} {
		require.ErrorContains(t, err, fault)
	}
	require.ErrorContains(t, dedupe.EffectsConfig{OnUnknown: 7}.Validate(), "OnUnknown(7)")
	require.ErrorContains(t, dedupe.EffectsConfig{OnUnknown: -1}.Validate(), "OnUnknown(-1)")
	require.ErrorContains(t, dedupe.EffectsConfig{Lease: -1}.Validate(), "Lease")
	asks := dedupe.EffectsConfig{Probe: notFound}
	require.ErrorContains(t, asks.Validate(), "never asked: OnUnknown is repeat")
	asks.OnUnknown = dedupe.Probe
	require.NoError(t, asks.Validate())
	require.NoError(t, dedupe.EffectsConfig{Consumer: "c", Table: "s.t", Wait: -1, OnUnknown: dedupe.Refuse}.Validate())
	require.NoError(t, dedupe.EffectsConfig{}.Validate())
	require.Equal(t, "repeat probe refuse", dedupe.Repeat.String()+" "+dedupe.Probe.String()+" "+dedupe.Refuse.String())
}
