package dedupe_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/internal/tcpproxy"
)

// behindProxy is a process of its own on the same journal, whose network can fail.
func (j *journal) behindProxy(config dedupe.EffectsConfig) (*tcpproxy.Proxy, *dedupe.Effects) {
	j.t.Helper()
	proxy, url := pgtest.Proxy(j.t, j.url)
	e := openEffects(j.t, pgtest.PoolOn(j.t, url), config)
	for _, err := range []error{errors.New("x"), nil} { // all statements are prepared
		_, got := dedupe.Do(j.t.Context(), e, "warm-up", nil, fail(err))
		require.Equal(j.t, err, got)
	}
	return proxy, e
}

// cutOnce cuts the connection at the first piece of data that holds a text, in one direction.
func cutOnce(proxy *tcpproxy.Proxy, direction tcpproxy.Direction, text string) *atomic.Bool {
	var cut atomic.Bool
	proxy.OnData(func(d tcpproxy.Direction, piece []byte) bool {
		return d != direction || !bytes.Contains(piece, []byte(text)) || !cut.CompareAndSwap(false, true)
	})
	return &cut
}

// The answer to the intent is lost: no call is made, and nothing is left that would be taken for one.
func TestConnectionCutInTheIntent(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"fresh", "free", "unknown"} {
		t.Run(before, func(t *testing.T) {
			t.Parallel()
			j := newJournal(t, dedupe.EffectsConfig{})
			proxy, e := j.behindProxy(dedupe.EffectsConfig{})
			want, answer := "free", "INSERT 0 1\x00"
			switch before {
			case "free":
				_, _ = dedupe.Do(t.Context(), j.Effects, "k", nil, fail(dedupe.NotDone(errors.New("x"))))
				answer = "UPDATE 1\x00"
			case "unknown":
				_, _ = dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("x")))
				want, answer = "unknown", "UPDATE 1\x00"
			}
			cut := cutOnce(proxy, tcpproxy.FromServer, answer)
			_, err := dedupe.Do(t.Context(), e, "k", nil, func(context.Context, string) (receipt, error) { panic("called") })
			require.Error(t, err)
			require.True(t, cut.Load())
			require.Equal(t, want, j.state("k"), "not for a whole lease: it is taken back")

			calls := 0
			_, err = dedupe.Do(t.Context(), e, "k", nil, charge(&calls, "r"))
			require.NoError(t, err)
			require.Equal(t, 1, calls)
		})
	}
	t.Run("before it was sent", func(t *testing.T) {
		t.Parallel()
		j := newJournal(t, dedupe.EffectsConfig{})
		proxy, e := j.behindProxy(dedupe.EffectsConfig{})
		proxy.Down(true)
		proxy.Cut()
		_, err := dedupe.Do(t.Context(), e, "k", nil, fail(errors.New("called")))
		require.ErrorContains(t, err, "claim effect")
		j.requireCounts(0, 0, 0)
	})
}

// The outcome, or the answer to it, is lost on its way: it is sent again, and was stored once.
func TestConnectionCutInTheOutcome(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		direction tcpproxy.Direction
		text      string
	}{"on its way": {tcpproxy.ToServer, "receipt-1"}, "the answer": {tcpproxy.FromServer, "SELECT 1\x00"}} {
		for state, returned := range map[string]error{
			"done": nil, "failed": dedupe.Final(errors.New("receipt-1")), "free": dedupe.NotDone(errors.New("receipt-1")),
		} {
			j := newJournal(t, dedupe.EffectsConfig{})
			proxy, e := j.behindProxy(dedupe.EffectsConfig{})
			var cut *atomic.Bool
			_, err := dedupe.Do(t.Context(), e, "k", nil, func(context.Context, string) (receipt, error) {
				cut = cutOnce(proxy, test.direction, test.text)
				return receipt{"receipt-1", 1}, returned
			})
			require.True(t, cut.Load(), name)
			require.Equal(t, returned, err, name)
			require.Equal(t, state, j.state("k"), name)
		}
	}
}

// The database stays away after the call: the outcome is lost, and the call unknown.
func TestDatabaseAwayAfterTheCall(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse})
	const lease = 3 * time.Second
	proxy, e := j.behindProxy(dedupe.EffectsConfig{Lease: lease})
	_, err := dedupe.Do(t.Context(), e, "k", nil, func(context.Context, string) (receipt, error) {
		proxy.Down(true)
		proxy.Cut()
		return receipt{"r", 1}, nil
	})
	require.ErrorIs(t, err, dedupe.ErrOutcomeLost)
	require.Eventually(t, func() bool {
		_, err = dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("called")))
		return errors.Is(err, dedupe.ErrUnknown)
	}, 20*time.Second, 10*time.Millisecond)
	j.requireCounts(0, 1, 0)

	// Back within the lease, it is stored.
	proxy.Down(false)
	_, err = dedupe.Do(t.Context(), e, "back", nil, func(context.Context, string) (receipt, error) {
		proxy.Down(true)
		proxy.Cut()
		time.AfterFunc(lease/10, func() { proxy.Down(false) })
		return receipt{"r", 1}, nil
	})
	require.NoError(t, err)
	require.Equal(t, "done", j.state("back"))
}

// The network loses everything without a word: the call is told to end before the lease can be anybody else's.
func TestCallEndsBeforeTheLeaseDoes(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse, Wait: -1})
	proxy, e := j.behindProxy(dedupe.EffectsConfig{Lease: 10 * time.Second})
	_, err := dedupe.Do(t.Context(), e, "k", nil, func(ctx context.Context, _ string) (receipt, error) {
		proxy.Hold(tcpproxy.ToServer, true)
		<-ctx.Done()
		told := time.Now()
		require.ErrorIs(t, context.Cause(ctx), dedupe.ErrLeaseLost)
		require.Less(t, told, j.leaseEnd("k", ""), "the server's clock is this machine's here")
		return receipt{}, ctx.Err()
	})
	require.ErrorIs(t, err, dedupe.ErrLeaseLost)
	require.ErrorIs(t, err, context.Canceled)
	proxy.Hold(tcpproxy.ToServer, false)
}

// PostgreSQL is shut down as in a crash and comes back during the call. A lease that is long enough outlives it.
func TestPostgreSQLRestartsDuringTheCall(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	pool, err := pgxpool.New(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	defer pool.Close()
	exec(t, pool, dedupe.EffectsConfig{}.Schema())
	calls := 0

	long := openEffects(t, pool, dedupe.EffectsConfig{Lease: 15 * time.Second})
	_, err = dedupe.Do(t.Context(), long, "long", nil, func(ctx context.Context, key string) (receipt, error) {
		calls++
		require.NoError(t, server.Abort())
		require.NoError(t, server.Restart(t.Context()))
		j := &journal{t: t, pool: pgtest.PoolOn(t, server.URL("postgres"))}
		first := j.leaseEnd(key, "")
		require.Eventually(t, func() bool { return j.leaseEnd(key, "").After(first) }, 30*time.Second, 20*time.Millisecond)
		require.NoError(t, ctx.Err())
		return receipt{"r", 1}, nil
	})
	require.NoError(t, err)
	require.Equal(t, 1, calls)

	short := openEffects(t, pool, dedupe.EffectsConfig{Lease: time.Second, OnUnknown: dedupe.Refuse})
	_, err = dedupe.Do(t.Context(), short, "short", nil, func(ctx context.Context, _ string) (receipt, error) {
		require.NoError(t, server.Abort())
		<-ctx.Done()
		return receipt{}, ctx.Err()
	})
	require.ErrorIs(t, err, dedupe.ErrLeaseLost)
	require.NoError(t, server.Restart(t.Context()))
	require.Eventually(t, func() bool {
		_, err := dedupe.Do(t.Context(), short, "short", nil, fail(errors.New("called")))
		return errors.Is(err, dedupe.ErrUnknown)
	}, 30*time.Second, 20*time.Millisecond)
}
