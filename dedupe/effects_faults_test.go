package dedupe_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
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

// The claim is committed and its answer comes when the lease is over.
func TestAnswerToTheClaimComesLate(t *testing.T) {
	t.Parallel()
	for _, policy := range []dedupe.OnUnknown{dedupe.Repeat, dedupe.Refuse} {
		for _, before := range []string{"fresh", "free"} {
			t.Run(policy.String()+" "+before, func(t *testing.T) {
				t.Parallel()
				const lease = 1500 * time.Millisecond
				config := dedupe.EffectsConfig{Lease: lease, OnUnknown: policy, Wait: time.Minute}
				j := newJournal(t, config)
				proxy, e := j.behindProxy(dedupe.EffectsConfig{Lease: lease})
				answer := "INSERT 0 1\x00"
				if before == "free" {
					_, _ = dedupe.Do(t.Context(), j.Effects, "k", nil, fail(dedupe.NotDone(errors.New("x"))))
					answer = "UPDATE 1\x00"
				}
				var once sync.Once
				held := make(chan struct{})
				proxy.OnData(func(d tcpproxy.Direction, piece []byte) bool {
					if d == tcpproxy.FromServer && bytes.Contains(piece, []byte(answer)) {
						once.Do(func() {
							go func() { proxy.Hold(tcpproxy.FromServer, true); close(held) }()
							time.Sleep(50 * time.Millisecond)
						})
					}
					return true
				})
				var calls atomic.Int32
				first := make(chan error, 1)
				go func() {
					_, err := dedupe.Do(t.Context(), e, "k", nil, func(context.Context, string) (receipt, error) {
						calls.Add(1)
						return receipt{"first", 1}, nil
					})
					first <- err
				}()
				<-held
				require.Eventually(t, func() bool { c, err := j.Count(t.Context()); return err == nil && c.Unknown == 1 }, 20*time.Second, 10*time.Millisecond)
				if policy == dedupe.Refuse {
					require.NoError(t, j.ResolveNotDone(t.Context(), "k"))
				}
				_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (receipt, error) {
					calls.Add(1)
					return receipt{"second", 1}, nil
				})
				require.NoError(t, err)
				proxy.Hold(tcpproxy.FromServer, false)
				require.ErrorIs(t, <-first, context.DeadlineExceeded)
				require.EqualValues(t, 1, calls.Load(), "the lease was over before the call was begun")
			})
		}
	}
}

// ctx ends while the claim's answer is on the way.
func TestCtxEndedBeforeTheCall(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse})
	proxy, e := j.behindProxy(dedupe.EffectsConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	proxy.OnData(func(d tcpproxy.Direction, piece []byte) bool {
		if d == tcpproxy.FromServer && bytes.Contains(piece, []byte("INSERT 0 1\x00")) {
			go cancel()
		}
		return true
	})
	_, err := dedupe.Do(ctx, e, "k", nil, func(ctx context.Context, _ string) (receipt, error) {
		<-ctx.Done()
		return receipt{}, dedupe.NotDone(ctx.Err())
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "free", j.state("k"))
}

// A statement that is cancelled is sent again, while the lease lasts.
func TestStatementTimeoutInTheOutcome(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	config, err := pgxpool.ParseConfig(j.url)
	require.NoError(t, err)
	config.ConnConfig.RuntimeParams["statement_timeout"] = "300"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	e := openEffects(t, pool, dedupe.EffectsConfig{})
	tx, err := j.pool.Begin(t.Context())
	require.NoError(t, err)
	released := make(chan struct{})
	_, err = dedupe.Do(t.Context(), e, "k", nil, func(context.Context, string) (receipt, error) {
		_, err := tx.Exec(t.Context(), `select from watermill_effects where key = 'k' for update`)
		require.NoError(t, err)
		time.AfterFunc(500*time.Millisecond, func() { _ = tx.Rollback(t.Context()); close(released) })
		return receipt{"r", 1}, nil
	})
	<-released
	require.NoError(t, err)
	require.Equal(t, "done", j.state("k"))
}

type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (d deafConn) Write(b []byte) (int, error) {
	if d.deaf.Load() {
		return len(b), nil // lost without a word
	}
	return d.Conn.Write(b)
}

// One connection of the pool is dead without a word; new ones work.
func TestOneDeadConnectionAtTheEnd(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	config, err := pgxpool.ParseConfig(j.url)
	require.NoError(t, err)
	var current atomic.Pointer[atomic.Bool]
	current.Store(new(atomic.Bool))
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return deafConn{c, current.Load()}, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	e := openEffects(t, pool, dedupe.EffectsConfig{Lease: 6 * time.Second})
	_, err = dedupe.Do(t.Context(), e, "k", nil, func(context.Context, string) (receipt, error) {
		current.Swap(new(atomic.Bool)).Store(true)
		return receipt{"r", 1}, nil
	})
	require.NoError(t, err)
	require.Equal(t, "done", j.state("k"))
}

// Waiting for a connection is no part of the lease.
func TestPoolWaitIsNoLease(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	config, err := pgxpool.ParseConfig(j.url)
	require.NoError(t, err)
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	const lease = 3 * time.Second
	e := openEffects(t, pool, dedupe.EffectsConfig{Lease: lease})
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	time.AfterFunc(lease*3/5, conn.Release)
	_, err = dedupe.Do(t.Context(), e, "k", nil, func(ctx context.Context, _ string) (receipt, error) {
		select {
		case <-ctx.Done():
			return receipt{}, ctx.Err()
		case <-time.After(lease / 2):
			return receipt{"r", 1}, nil
		}
	})
	require.NoError(t, err)
}

// The database's encoding lacks letters of the outcome, and of errors.
func TestLettersThatTheDatabaseLacks(t *testing.T) {
	t.Parallel()
	url := pgtest.Latin1(t)
	j := &journal{t: t, url: url, pool: pgtest.PoolOn(t, url)}
	j.exec(dedupe.EffectsConfig{}.Schema())
	j.Effects = openEffects(t, j.pool, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse})
	const text = "соединение 😀 é"

	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(dedupe.NotDone(errors.New(text))))
	require.EqualError(t, err, text)
	require.Equal(t, "free", j.state("k"))
	for range 2 {
		got, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (string, error) { return text, nil })
		require.NoError(t, err)
		require.Equal(t, text, got)
	}
	for range 2 {
		_, err := dedupe.Do(t.Context(), j.Effects, "final", nil, fail(dedupe.Final(errors.New(text))))
		var final *dedupe.FinalError
		require.ErrorAs(t, err, &final)
	}
	j.abandon("operator")
	require.NoError(t, j.Resolve(t.Context(), "operator", text))
	got, err := dedupe.Do(t.Context(), j.Effects, "operator", nil, func(context.Context, string) (string, error) { panic("called") })
	require.NoError(t, err)
	require.Equal(t, text, got)
	j.abandon("refused")
	require.NoError(t, j.ResolveFinal(t.Context(), "refused", errors.New(text)))
}
