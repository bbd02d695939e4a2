package dedupe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
					_, err := dedupe.Do(t.Context(), e, "k", nil, func(ctx context.Context, _ string) (receipt, error) {
						calls.Add(1)
						t.Log("first calls; its context's cause:", context.Cause(ctx))
						return receipt{"first", 1}, nil
					})
					first <- err
				}()
				<-held
				require.Eventually(t, func() bool { c, err := j.Count(t.Context()); return err == nil && c.Unknown == 1 }, 20*time.Second, 10*time.Millisecond)
				if policy == dedupe.Refuse {
					require.NoError(t, j.ResolveNotDone(t.Context(), "k"))
				}
				_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(ctx context.Context, _ string) (receipt, error) {
					calls.Add(1)
					return receipt{"second", 1}, nil
				})
				require.NoError(t, err)
				proxy.Hold(tcpproxy.FromServer, false)
				t.Log("first:", <-first)
				require.EqualValues(t, 1, calls.Load(), "the lease was over before the call was begun")
			})
		}
	}
}

// Probe's error says NotDone, as that of an HTTP client shared with call does.
func TestProbeErrorNotDone(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Probe, Probe: func(context.Context, string) (json.RawMessage, bool, error) {
		return nil, false, dedupe.NotDone(errors.New("connection refused"))
	}})
	j.abandon("k")
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("called")))
	t.Log(err)
	require.Equal(t, "unknown", j.state("k"))
}

// A repeat that did not get through says nothing about the first call.
func TestRepeatNotDoneAfterUnknown(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("timeout, after the charge")))
	require.Error(t, err)
	_, err = dedupe.Do(t.Context(), j.Effects, "k", nil, fail(dedupe.NotDone(errors.New("connection refused"))))
	require.Error(t, err)
	refuse := j.with(dedupe.EffectsConfig{OnUnknown: dedupe.Refuse})
	_, err = dedupe.Do(t.Context(), refuse.Effects, "k", nil, fail(errors.New("called")))
	require.ErrorIs(t, err, dedupe.ErrUnknown)
}

func TestRawMessageNotUTF8(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	calls := 0
	for range 3 {
		_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (json.RawMessage, error) {
			calls++
			return json.RawMessage("{\"name\":\"Andr\xe9\"}"), nil // a body as it came
		})
		t.Log(err)
	}
	require.Equal(t, 1, calls)
}

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
	t.Log(j.state("k"))
	require.NoError(t, err)
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
	t.Log(err)
	require.NoError(t, err)
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

type status int

func (s status) MarshalText() ([]byte, error) {
	if s == 0 {
		return nil, errors.New("no such status")
	}
	return []byte("paid"), nil
}
func (s *status) UnmarshalText([]byte) error { *s = 1; return nil }

func TestZeroValueIsNoJSON(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (status, error) { return 1, nil })
	require.NoError(t, err)
}

func TestFinalWithoutText(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	_, _ = dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("timeout")))
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(dedupe.Final(errors.New(""))))
	require.EqualError(t, err, "")
	_, err = dedupe.Do(t.Context(), j.Effects, "k", nil, fail(dedupe.Final(errors.New(""))))
	require.EqualError(t, err, "")
}

func TestMarksInJoinedErrors(t *testing.T) {
	t.Parallel()
	timeout := errors.New("timeout")
	final, notDone := dedupe.Final(errors.New("declined")), dedupe.NotDone(errors.New("busy"))
	j := newJournal(t, dedupe.EffectsConfig{})
	for name, test := range map[string]struct {
		err   error
		state string
	}{
		"final wrapped":        {fmt.Errorf("order 5: %w", final), "failed"},
		"final alone":          {errors.Join(nil, final), "failed"},
		"two finals":           {errors.Join(final, fmt.Errorf("order 6: %w", final)), "failed"},
		"final and timeout":    {errors.Join(final, timeout), "unknown"},
		"timeout and final":    {errors.Join(timeout, final), "unknown"},
		"sentinel and final":   {fmt.Errorf("%w: %w", timeout, final), "unknown"},
		"final and not done":   {errors.Join(final, notDone), "unknown"},
		"final around a join":  {dedupe.Final(errors.Join(timeout, notDone)), "failed"},
		"not done wrapped":     {fmt.Errorf("order 5: %w", notDone), "free"},
		"two not done":         {errors.Join(notDone, errors.Join(notDone)), "free"},
		"timeout and not done": {errors.Join(timeout, notDone), "unknown"},
		"not done, a timeout":  {dedupe.NotDone(errors.Join(timeout, final)), "free"},
	} {
		_, err := dedupe.Do(t.Context(), j.Effects, name, nil, fail(test.err))
		require.Equal(t, test.err, err, name)
		require.Equal(t, test.state, j.state(name), name)
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
	called := false
	_, err := dedupe.Do(ctx, e, "k", nil, func(ctx context.Context, _ string) (receipt, error) {
		called = ctx.Err() != nil
		return receipt{}, ctx.Err()
	})
	t.Log(err, called, j.state("k"))
}

func TestErrorTextShowsOutcome(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	j.abandon("k")
	require.NoError(t, j.Resolve(t.Context(), "k", 4111111111111111))
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (int32, error) { return 0, nil })
	require.NotContains(t, err.Error(), "4111111111111111")
}

var _ = pgtest.PoolOn
