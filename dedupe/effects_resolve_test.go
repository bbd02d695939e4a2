package dedupe_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"error", "crash"} {
		j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse})
		doubt := func(key string) {
			if how == "crash" {
				j.abandon(key)
			} else {
				_, err := dedupe.Do(t.Context(), j.Effects, key, 100, fail(errors.New("timeout")))
				require.Error(t, err)
			}
			_, err := dedupe.Do(t.Context(), j.Effects, key, 100, fail(errors.New("called")))
			require.ErrorIs(t, err, dedupe.ErrUnknown)
			require.Equal(t, how == "crash", j.state(key) == "started")
		}
		calls := 0
		do := func(key string) (receipt, error) {
			return dedupe.Do(t.Context(), j.Effects, key, 100, charge(&calls, "called"))
		}

		doubt("happened")
		require.NoError(t, j.Resolve(t.Context(), "happened", receipt{"found", 100}))
		got, err := do("happened")
		require.NoError(t, err)
		require.Equal(t, receipt{"found", 100}, got)
		require.Zero(t, calls)

		doubt("not to be")
		require.NoError(t, j.ResolveFinal(t.Context(), "not to be", errors.New("card expired")))
		_, err = do("not to be")
		var final *dedupe.FinalError
		require.ErrorAs(t, err, &final)
		require.Equal(t, "card expired", final.Text)
		require.Zero(t, calls)

		doubt("not done")
		require.NoError(t, j.ResolveNotDone(t.Context(), "not done"))
		j.requireCounts(0, 0, 1)
		got, err = do("not done")
		require.NoError(t, err)
		require.Equal(t, "called", got.ID)
		require.Equal(t, 1, calls)

		for key, state := range map[string]string{"happened": "done", "not to be": "failed", "not done": "done", "nobody": "no unknown call"} {
			for _, err := range []error{
				j.Resolve(t.Context(), key, nil), j.ResolveNotDone(t.Context(), key), j.ResolveFinal(t.Context(), key, errors.New("x")),
			} {
				require.ErrorIs(t, err, dedupe.ErrNotUnknown)
				require.ErrorContains(t, err, state)
			}
		}
		require.Error(t, j.Resolve(t.Context(), "happened", make(chan int)))
		require.Error(t, j.ResolveFinal(t.Context(), "happened", nil))
		j.requireCounts(0, 0, 0)
	}
}

// What a person has found out commits with what follows from it, or not at all.
func TestResolveInATransaction(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse})
	for key, resolve := range map[string]func(ctx context.Context, tx pgx.Tx, key string) error{
		"done": func(ctx context.Context, tx pgx.Tx, key string) error {
			return j.ResolveTx(ctx, tx, key, receipt{"found", 1})
		},
		"free": j.ResolveNotDoneTx,
		"failed": func(ctx context.Context, tx pgx.Tx, key string) error {
			return j.ResolveFinalTx(ctx, tx, key, errors.New("declined"))
		},
	} {
		_, err := dedupe.Do(t.Context(), j.Effects, key, nil, fail(errors.New("timeout")))
		require.Error(t, err)
		tx := begin(t, j.pool)
		require.NoError(t, resolve(t.Context(), tx, key))
		require.Equal(t, "unknown", j.state(key), "nothing is committed")
		require.NoError(t, tx.Rollback(t.Context()))
		require.Equal(t, "unknown", j.state(key))

		tx = begin(t, j.pool)
		require.NoError(t, resolve(t.Context(), tx, key))
		require.ErrorIs(t, resolve(t.Context(), tx, key), dedupe.ErrNotUnknown)
		require.NoError(t, tx.Commit(t.Context()), "ErrNotUnknown does not abort it")
		require.Equal(t, key, j.state(key))
	}
}

func TestDoWaitsForTheTransactionThatResolves(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse})
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("timeout")))
	require.Error(t, err)
	tx := begin(t, j.pool)
	require.NoError(t, j.ResolveTx(t.Context(), tx, "k", receipt{"found", 1}))
	results := make(chan receipt, 1)
	go func() {
		defer close(results)
		if got, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("called"))); err == nil {
			results <- got
		}
	}()
	require.Eventually(t, func() bool {
		var waiting bool
		err := j.pool.QueryRow(t.Context(), `select exists (
			select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`).Scan(&waiting)
		return err == nil && waiting
	}, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, receipt{"found", 1}, <-results)
}

func TestResolveWhatIsRunning(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{Lease: time.Minute})
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, charge(new(int), "r"))
	require.NoError(t, err)
	_, err = dedupe.Do(t.Context(), j.Effects, "running", nil, func(_ context.Context, key string) (receipt, error) {
		require.ErrorIs(t, j.Resolve(t.Context(), key, nil), dedupe.ErrNotUnknown)
		// Once its lease is over a person may resolve it; then the one who is at it comes too late.
		j.expire(key)
		require.NoError(t, j.Resolve(t.Context(), key, receipt{"found", 1}))
		return receipt{"late", 1}, nil
	})
	require.ErrorIs(t, err, dedupe.ErrLeaseLost)
	got, err := dedupe.Do(t.Context(), j.Effects, "running", nil, fail(errors.New("called")))
	require.NoError(t, err)
	require.Equal(t, "found", got.ID)
}

func TestListAndCount(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	x := errors.New("no luck")
	j.requireCounts(0, 0, 0)
	for _, key := range []string{"u1", "u2"} {
		for range 2 {
			_, err := dedupe.Do(t.Context(), j.Effects, key, "secret", fail(x))
			require.ErrorIs(t, err, x)
		}
	}
	j.abandon("u3") // an hour ago
	_, err := dedupe.Do(t.Context(), j.Effects, "f1", nil, fail(dedupe.NotDone(x)))
	require.ErrorIs(t, err, x)
	_, _ = dedupe.Do(t.Context(), j.Effects, "final", nil, fail(dedupe.Final(x)))
	_, _ = dedupe.Do(t.Context(), j.with(dedupe.EffectsConfig{Consumer: "other"}).Effects, "u4", nil, fail(x))

	_, err = dedupe.Do(t.Context(), j.Effects, "r1", nil, func(context.Context, string) (int, error) {
		j.requireCounts(1, 3, 1)
		running, err := j.List(t.Context(), dedupe.Running, 10)
		require.NoError(t, err)
		require.Len(t, running, 1)
		require.Equal(t, "r1", running[0].Key)
		require.Equal(t, dedupe.Running, running[0].State)
		require.Equal(t, 1, running[0].Attempts)
		require.True(t, running[0].LeaseUntil.After(running[0].StartedAt))
		return 0, nil
	})
	require.NoError(t, err)

	unknown, err := j.List(t.Context(), dedupe.Unknown, 10)
	require.NoError(t, err)
	require.Len(t, unknown, 3)
	require.Equal(t, []string{"u3", "u1", "u2"}, []string{unknown[0].Key, unknown[1].Key, unknown[2].Key}, "the oldest first")
	require.Empty(t, unknown[0].LastError)
	require.False(t, unknown[0].LeaseUntil.IsZero())
	require.Equal(t, 2, unknown[1].Attempts)
	require.Equal(t, "no luck", unknown[1].LastError)
	require.True(t, unknown[1].LeaseUntil.IsZero())
	require.Equal(t, dedupe.Unknown, unknown[1].State)
	first, err := j.List(t.Context(), dedupe.Unknown, 1)
	require.NoError(t, err)
	require.Equal(t, unknown[:1], first)
	free, err := j.List(t.Context(), dedupe.Free, 10)
	require.NoError(t, err)
	require.Len(t, free, 1)
	_, err = j.List(t.Context(), dedupe.EffectState(9), 1)
	require.ErrorContains(t, err, "EffectState(9)")
	require.Equal(t, "running unknown free", dedupe.Running.String()+" "+dedupe.Unknown.String()+" "+dedupe.Free.String())

	// What was asked is nowhere in the table.
	var secrets int
	require.NoError(t, j.pool.QueryRow(t.Context(), `select count(*) from watermill_effects e where e::text like '%secret%'`).Scan(&secrets))
	require.Zero(t, secrets)
}

// An operator's questions do not read what is done.
func TestListUsesTheIndex(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	j.exec(`insert into watermill_effects (consumer, key, state, token, attempts, started_at, outcome)
		select '', 'd' || n, 'done', n, 1, now(), '1' from generate_series(1, 20000) n`)
	j.exec(`analyze watermill_effects`)
	rows, err := j.pool.Query(t.Context(), `explain select key from watermill_effects
		where consumer = '' and state in ('started', 'unknown', 'free')
		and case when state <> 'started' then state when lease_until <= clock_timestamp() then 'unknown' else state end = 'unknown'
		order by started_at, key limit 10`)
	require.NoError(t, err)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, strings.Join(plan, "\n"), "watermill_effects_consumer_started_at_idx")
}

func TestLastErrorsAreCutAndCleaned(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	long := "a\x00b\xff" + strings.Repeat("é", 4<<10)
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(dedupe.Final(errors.New(long))))
	require.EqualError(t, err, long)
	_, err = dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("called")))
	require.Less(t, len(err.Error()), 4200)
	require.True(t, strings.HasPrefix(err.Error(), "a\uFFFDb\uFFFDéé"))
	require.True(t, strings.HasSuffix(err.Error(), "éé"))

	_, err = dedupe.Do(t.Context(), j.Effects, "empty", nil, fail(errors.New("before")))
	require.Error(t, err)
	for range 2 {
		_, err = dedupe.Do(t.Context(), j.Effects, "empty", nil, fail(dedupe.Final(errors.New(""))))
		require.EqualError(t, err, "")
	}
}

func TestEffectsSchemaUnderEveryName(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	j.exec(`create schema shop; create schema "Shop"`)
	for _, name := range tableNames {
		config := dedupe.EffectsConfig{Table: name}
		require.NoError(t, config.Validate())
		exec(t, j.pool, config.Schema())
		before := catalog(t, j.pool)
		exec(t, j.pool, config.Schema())
		require.Equal(t, before, catalog(t, j.pool), "the second run changes nothing")
		outcome(t, j.with(config), "k", name)
		require.ErrorIs(t, j.with(config).Resolve(t.Context(), "k", nil), dedupe.ErrNotUnknown)
		_, err := j.with(config).List(t.Context(), dedupe.Unknown, 1)
		require.NoError(t, err)
		j.with(config).requireCounts(0, 0, 0)
	}
	_, err := j.pool.Exec(t.Context(), dedupe.EffectsConfig{Table: "a.b.c"}.Schema())
	require.Error(t, err)
}
