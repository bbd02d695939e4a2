package dedupe_test

import (
	"context"
	"testing"

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

// abandon leaves a key as a process leaves it that died in the call, some time ago.
func (j *journal) abandon(key string) {
	j.t.Helper()
	j.exec(`insert into watermill_effects (consumer, key, state, token, attempts, started_at, lease_until)
		values ('', $1, 'started', 1, 1, clock_timestamp() - interval '1 h', clock_timestamp() - interval '1 min')`, key)
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
