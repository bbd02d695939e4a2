package dedupe_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
)

// cutConn ends after so many more bytes, in one direction.
type cutConn struct {
	net.Conn
	in, out *atomic.Int64 // bytes left; negative: no end
}

func (c cutConn) Write(b []byte) (int, error) {
	if left := c.out.Load(); left >= 0 && int64(len(b)) > left {
		n, _ := c.Conn.Write(b[:left])
		time.Sleep(3 * time.Millisecond)
		c.Conn.Close()
		c.out.Store(-1)
		return n, errors.New("cut")
	} else if left >= 0 {
		c.out.Add(-int64(len(b)))
	}
	return c.Conn.Write(b)
}

func (c cutConn) Read(b []byte) (int, error) {
	left := c.in.Load()
	if left == 0 {
		c.Conn.Close()
		c.in.Store(-1)
		return 0, errors.New("cut")
	}
	if left > 0 && int64(len(b)) > left {
		b = b[:left]
	}
	n, err := c.Conn.Read(b)
	if left > 0 {
		c.in.Add(-int64(n))
	}
	return n, err
}

func TestCutAtEveryByte(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse, Wait: -1})
			config, err := pgxpool.ParseConfig(j.url)
			require.NoError(t, err)
			var in, out atomic.Int64
			in.Store(-1)
			out.Store(-1)
			config.MaxConns = 1
			config.ConnConfig.DefaultQueryExecMode = mode
			config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				return cutConn{c, &in, &out}, nil
			}
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			require.NoError(t, err)
			defer pool.Close()
			e := openEffects(t, pool, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse, Wait: -1})
			stats := map[string]int{}
			for _, kind := range []string{"value", "notdone", "final", "takeover"} {
				for _, dir := range []string{"in", "out"} {
					_, _ = dedupe.Do(t.Context(), e, "w"+kind+dir, nil, fail(dedupe.NotDone(errors.New("x"))))
					_, err := dedupe.Do(t.Context(), e, "w"+kind+dir, nil, fail(nil))
					require.NoError(t, err)
					limit, step := 1400, 5
					if mode != pgx.QueryExecModeCacheStatement {
						limit, step = 2400, 17
					}
					for n := rand.IntN(step); n < limit; n += step {
						key := kind + dir + strings.Repeat("x", n%7) + time.Now().Format("150405.000000000")
						if kind == "takeover" {
							_, _ = dedupe.Do(t.Context(), j.Effects, key, nil, fail(dedupe.NotDone(errors.New("x"))))
						}
						budget := &in
						if dir == "out" {
							budget = &out
						}
						calls := 0
						budget.Store(int64(n))
						_, err1 := dedupe.Do(t.Context(), e, key, "req", func(context.Context, string) (receipt, error) {
							calls++
							switch kind {
							case "notdone":
								return receipt{}, dedupe.NotDone(errors.New("x"))
							case "final":
								return receipt{}, dedupe.Final(errors.New("x"))
							}
							return receipt{"r", 1}, nil
						})
						whole := budget.Swap(-1) >= 0
						first := calls
						_, err2 := dedupe.Do(t.Context(), j.Effects, key, "req", func(context.Context, string) (receipt, error) { calls++; return receipt{"r2", 2}, nil })
						var final *dedupe.FinalError
						switch {
						case first == 0:
							require.Error(t, err1)
							require.True(t, err2 == nil || errors.Is(err2, dedupe.ErrUnknown) || errors.Is(err2, dedupe.ErrInFlight), "%v", err2)
						case kind == "notdone":
							require.True(t, err2 == nil || errors.Is(err2, dedupe.ErrUnknown), "%v %v", err1, err2)
						case err1 == nil:
							require.NoError(t, err2)
							require.Equal(t, 1, calls)
						case errors.As(err1, &final):
							require.ErrorAs(t, err2, &final)
							require.Equal(t, 1, calls)
						default:
							require.Equal(t, 1, calls, "%v %v", err1, err2)
							stats["lost "+err1.Error()]++
						}
						switch {
						case whole:
							stats["whole"]++
						case first == 0 && errors.Is(err2, dedupe.ErrInFlight):
							stats["not called, left in flight"]++
						case first == 0 && errors.Is(err2, dedupe.ErrUnknown):
							stats["not called, unknown"]++
						case first == 0:
							stats["not called"]++
						default:
							stats["called"]++
						}
					}
				}
			}
			t.Log(stats)
		})
	}
}

// The context ends at any moment.
func TestCtxEndsAtAnyMoment(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse, Wait: -1})
	e := j.Effects
	var stats sync.Map
	count := func(s string) { v, _ := stats.LoadOrStore(s, new(atomic.Int32)); v.(*atomic.Int32).Add(1) }
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 250 {
				key := strings.Repeat("k", g+1) + time.Now().Format("150405.000000000")
				_ = i
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(6000))*time.Microsecond)
				calls := 0
				_, err := dedupe.Do(ctx, e, key, nil, func(context.Context, string) (receipt, error) {
					calls++
					time.Sleep(time.Millisecond)
					return receipt{"r", 1}, nil
				})
				cancel()
				first := calls
				var err2 error
				for range 20 { // a claim may still be on its way in the server
					_, err2 = dedupe.Do(t.Context(), e, key, nil, func(context.Context, string) (receipt, error) { calls++; return receipt{"r2", 1}, nil })
					if !errors.Is(err2, dedupe.ErrInFlight) {
						break
					}
					time.Sleep(5 * time.Millisecond)
				}
				if first == 1 {
					if err != nil || err2 != nil || calls != 1 {
						t.Errorf("%v %v %d", err, err2, calls)
					}
					count("called")
				} else if err2 != nil {
					count("not called, then: " + err2.Error())
				} else {
					count("not called, then free")
				}
			}
		})
	}
	wg.Wait()
	stats.Range(func(k, v any) bool { t.Log(k, v.(*atomic.Int32).Load()); return true })
}

func TestHuge(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	big := strings.Repeat("\u0000<\xff", 4<<20)
	v, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (string, error) { return big, nil })
	require.NoError(t, err)
	v2, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (string, error) { panic("") })
	require.NoError(t, err)
	require.Equal(t, len(v), len(v2))
	require.True(t, v == v2)
	n, err := dedupe.Do(t.Context(), j.Effects, "any", nil, func(context.Context, string) (any, error) { return int64(9007199254740993), nil })
	require.NoError(t, err)
	t.Logf("%T %v", n, n)
	_, err = dedupe.Do(t.Context(), j.Effects, "deep", nil, func(context.Context, string) (any, error) {
		var v any = 1
		for range 9000 {
			v = []any{v}
		}
		return v, nil
	})
	t.Log("deep:", err)
	list := func() {
		for _, limit := range []int{-1, 0, 1 << 40} {
			l, err := j.List(t.Context(), dedupe.Unknown, limit)
			t.Log(limit, len(l), err)
		}
	}
	list()
}

// Heartbeats through PgBouncer.
func TestBouncer(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	url := pgtest.Bouncer(t, j.url)
	for _, mode := range []string{"cache_describe", "exec", "simple_protocol"} {
		pool := pgtest.PoolOn(t, url+"&default_query_exec_mode="+mode)
		e := openEffects(t, pool, dedupe.EffectsConfig{Lease: 2 * time.Second, Wait: 20 * time.Second})
		var calls, faults atomic.Int32
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for k := range 3 {
					_, err := dedupe.Do(t.Context(), e, mode+string(rune('a'+k)), nil, func(ctx context.Context, _ string) (receipt, error) {
						calls.Add(1)
						time.Sleep(time.Second)
						return receipt{"r", 1}, ctx.Err()
					})
					if err != nil {
						faults.Add(1)
						t.Log(mode, err)
					}
				}
			})
		}
		wg.Wait()
		t.Log(mode, calls.Load(), faults.Load())
	}
}
