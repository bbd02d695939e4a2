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

func TestLeaseOutlivesACallLongerThanIt(t *testing.T) {
	t.Parallel()
	config := dedupe.EffectsConfig{Lease: 3 * time.Second, Wait: -1}
	j := newJournal(t, config)
	calls := 0
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(ctx context.Context, key string) (receipt, error) {
		began := time.Now()
		for time.Since(began) < 2*config.Lease {
			_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, charge(&calls, "other"))
			require.ErrorIs(t, err, dedupe.ErrInFlight)
		}
		require.NoError(t, ctx.Err())
		return receipt{ID: "mine"}, nil
	})
	require.NoError(t, err)
	require.Zero(t, calls)
}

// An owner whose lease another one has taken is told to end, and can store nothing.
func TestLeaseLostToAnother(t *testing.T) {
	t.Parallel()
	for name, returned := range map[string]error{
		"value": nil, "error": errors.New("x"), "final": dedupe.Final(errors.New("x")), "not done": dedupe.NotDone(errors.New("x")),
	} {
		for _, wait := range []bool{true, false} { // for the renewal that finds out, or storing does
			t.Run(fmt.Sprint(name, wait), func(t *testing.T) {
				t.Parallel()
				j := newJournal(t, dedupe.EffectsConfig{Lease: 3 * time.Second})
				_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(ctx context.Context, _ string) (receipt, error) {
					j.expire("k")
					calls := 0
					_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, charge(&calls, "new"))
					require.NoError(t, err)
					require.Equal(t, 1, calls)
					if wait {
						<-ctx.Done()
						require.ErrorIs(t, context.Cause(ctx), dedupe.ErrLeaseLost)
					}
					return receipt{"old", 1}, returned
				})
				require.ErrorIs(t, err, dedupe.ErrLeaseLost)
				if name == "error" {
					require.ErrorIs(t, err, returned)
				}
				got, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("called")))
				require.NoError(t, err)
				require.Equal(t, "new", got.ID)
			})
		}
	}
}

// The caller is gone, and the call has not noticed: nobody else must begin meanwhile.
func TestLeaseIsRenewedThoughTheCallerIsGone(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{Lease: 12 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := dedupe.Do(ctx, j.Effects, "k", nil, func(context.Context, string) (receipt, error) {
		cancel()
		j.waitForRenewal("k")
		return receipt{"r", 1}, nil
	})
	require.NoError(t, err)
	require.Equal(t, "done", j.state("k"))
}

// A lease begins when it is asked for, and not when the caller began to wait for a connection.
func TestLeaseAfterAWaitForThePool(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	pool := pgtest.PoolOn(t, j.url+"&pool_max_conns=1")
	const lease = 6 * time.Second
	e := openEffects(t, pool, dedupe.EffectsConfig{Lease: lease})
	for _, before := range []string{"fresh", "unknown"} {
		if before == "unknown" {
			j.abandon(before)
		}
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		time.AfterFunc(lease+lease/10, conn.Release)
		_, err = dedupe.Do(t.Context(), e, before, nil, func(ctx context.Context, _ string) (receipt, error) {
			j.waitForRenewal(before)
			return receipt{}, context.Cause(ctx)
		})
		require.NoError(t, err)
	}
}

// A lease that is over and was not taken is still the owner's.
func TestLeaseOverAndNotTaken(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{Lease: time.Minute})
	got, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (receipt, error) {
		j.expire("k")
		j.requireCounts(0, 1, 0)
		return receipt{"r", 1}, nil
	})
	require.NoError(t, err)
	require.Equal(t, "r", got.ID)
	require.Equal(t, "done", j.state("k"))
}

func (j *journal) leaseEnd(key, consumer string) (end time.Time) {
	j.t.Helper()
	err := j.pool.QueryRow(context.Background(),
		`select coalesce(lease_until, clock_timestamp()) from watermill_effects where key = $1 and consumer = $2`, key, consumer).Scan(&end)
	require.NoError(j.t, err)
	return end
}
