package dedupe_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
)

// clockJournal is on a server whose clock can be wrong.
func clockJournal(t *testing.T, clock *pgtest.Clock, consumer string) *journal {
	t.Helper()
	j := &journal{t: t, url: clock.URL("postgres"), pool: pgtest.PoolOn(t, clock.URL("postgres"))}
	j.exec(dedupe.EffectsConfig{}.Schema())
	j.Effects = openEffects(t, j.pool, dedupe.EffectsConfig{Consumer: consumer, Lease: 3 * time.Second, Wait: -1})
	return j
}

// leaseLeft is how long a lease still lasts by the database's clock.
func (j *journal) leaseLeft(key string) time.Duration {
	j.t.Helper()
	var seconds float64
	err := j.pool.QueryRow(context.Background(),
		`select extract(epoch from lease_until - clock_timestamp())::float8 from watermill_effects where key = $1`, key).Scan(&seconds)
	require.NoError(j.t, err)
	return time.Duration(seconds * float64(time.Second))
}

// The machines' clocks and the database's need not agree: only the database's is compared.
func TestDatabaseClockIsOff(t *testing.T) {
	t.Parallel()
	clock := pgtest.ClockServer(t)
	for _, off := range []time.Duration{30 * time.Second, -30 * time.Second} {
		require.NoError(t, clock.SetOff(off))
		j := clockJournal(t, clock, fmt.Sprint(off))
		key := fmt.Sprint(off)
		rival := func() error {
			_, err := dedupe.Do(t.Context(), j.Effects, key, nil, fail(errors.New("called twice")))
			return err
		}
		_, err := dedupe.Do(t.Context(), j.Effects, key, nil, func(ctx context.Context, _ string) (receipt, error) {
			for range 2 { // renewals
				require.ErrorIs(t, rival(), dedupe.ErrInFlight)
				j.waitForRenewal(key)
			}
			require.ErrorIs(t, rival(), dedupe.ErrInFlight)
			return receipt{"r", 1}, ctx.Err()
		})
		require.NoError(t, err)
		require.NoError(t, rival(), "it is done")

		// One that died is free when its lease is over, and not before.
		key = "dead" + key
		j.exec(`insert into watermill_effects (consumer, key, state, token, attempts, started_at, lease_until)
			values ($1, $2, 'started', 1, 1, clock_timestamp(), clock_timestamp() + interval '1 s')`, fmt.Sprint(off), key)
		require.ErrorIs(t, rival(), dedupe.ErrInFlight)
		require.Eventually(t, func() bool { return !errors.Is(rival(), dedupe.ErrInFlight) }, 20*time.Second, 20*time.Millisecond)
		require.Equal(t, "unknown", j.state(key), "it was called again, which failed")
	}
}

// waitForRenewal returns when the lease has been renewed.
func (j *journal) waitForRenewal(key string) {
	j.t.Helper()
	read := func() (end *time.Time, err error) {
		err = j.pool.QueryRow(context.Background(), `select lease_until from watermill_effects where key = $1`, key).Scan(&end)
		return end, err
	}
	first, err := read()
	require.NoError(j.t, err)
	require.Eventually(j.t, func() bool {
		now, err := read()
		return err == nil && now != nil && !now.Equal(*first)
	}, time.Minute, 10*time.Millisecond)
}

// The clock jumps ahead while a lease is held: it looks over. Who takes the call over owns it; the other is told to end.
func TestDatabaseClockJumpsAhead(t *testing.T) {
	t.Parallel()
	clock := pgtest.ClockServer(t)
	j := clockJournal(t, clock, "")
	refuse := j.with(dedupe.EffectsConfig{OnUnknown: dedupe.Refuse, Wait: -1})
	_, err := dedupe.Do(t.Context(), j.Effects, "taken", nil, func(ctx context.Context, _ string) (receipt, error) {
		require.NoError(t, clock.SetOff(30*time.Second))
		got, err := dedupe.Do(t.Context(), j.Effects, "taken", nil, charge(new(int), "new"))
		require.NoError(t, err)
		require.Equal(t, "new", got.ID)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), dedupe.ErrLeaseLost)
		return receipt{"old", 1}, nil
	})
	require.ErrorIs(t, err, dedupe.ErrLeaseLost)
	got, err := dedupe.Do(t.Context(), j.Effects, "taken", nil, fail(errors.New("called")))
	require.NoError(t, err)
	require.Equal(t, "new", got.ID)

	// Where nobody takes it over, the next renewal sets it right.
	_, err = dedupe.Do(t.Context(), j.Effects, "kept", nil, func(ctx context.Context, _ string) (receipt, error) {
		require.NoError(t, clock.SetOff(60*time.Second))
		_, err := dedupe.Do(t.Context(), refuse.Effects, "kept", nil, fail(errors.New("called")))
		require.ErrorIs(t, err, dedupe.ErrUnknown)
		require.Eventually(t, func() bool {
			_, err := dedupe.Do(t.Context(), refuse.Effects, "kept", nil, fail(errors.New("called")))
			return errors.Is(err, dedupe.ErrInFlight)
		}, 20*time.Second, 10*time.Millisecond)
		return receipt{"r", 1}, ctx.Err()
	})
	require.NoError(t, err)
	require.Equal(t, "done", j.state("kept"))
}

// The clock jumps back: nobody gets the lease early, and the next renewal ends it in time again.
func TestDatabaseClockJumpsBack(t *testing.T) {
	t.Parallel()
	clock := pgtest.ClockServer(t)
	j := clockJournal(t, clock, "")
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(ctx context.Context, _ string) (receipt, error) {
		require.NoError(t, clock.SetOff(-30*time.Second))
		require.Greater(t, j.leaseLeft("k"), 25*time.Second)
		_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("called twice")))
		require.ErrorIs(t, err, dedupe.ErrInFlight)
		j.waitForRenewal("k")
		require.LessOrEqual(t, j.leaseLeft("k"), 3*time.Second)
		return receipt{"r", 1}, ctx.Err()
	})
	require.NoError(t, err)
	require.Equal(t, "done", j.state("k"))
}
