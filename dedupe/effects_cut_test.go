package dedupe_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
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

// cuttable opens an Effects over one connection at a time, each of which ends when in or out is used up.
func (j *journal) cuttable(mode pgx.QueryExecMode, effects dedupe.EffectsConfig) (e *dedupe.Effects, in, out *atomic.Int64) {
	j.t.Helper()
	in, out = new(atomic.Int64), new(atomic.Int64)
	in.Store(-1)
	out.Store(-1)
	config, err := pgxpool.ParseConfig(j.url)
	require.NoError(j.t, err)
	config.MaxConns = 1
	config.ConnConfig.DefaultQueryExecMode = mode
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return cutConn{c, in, out}, nil
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(j.t, err)
	j.t.Cleanup(pool.Close)
	return openEffects(j.t, pool, effects), in, out
}

// The connection is cut at any byte of what Do sends and gets. Whatever Do answers, a call that was made, and has not said NotDone,
// is never made again under Refuse, and the outcome that it answered stays.
func TestCutAtEveryByte(t *testing.T) {
	refuse := dedupe.EffectsConfig{OnUnknown: dedupe.Refuse, Wait: -1}
	for _, test := range []struct {
		mode        pgx.QueryExecMode
		bytes, step int // more than Do sends or gets
	}{
		{pgx.QueryExecModeCacheStatement, 1400, 5},
		{pgx.QueryExecModeExec, 2400, 17},
		{pgx.QueryExecModeSimpleProtocol, 2400, 17},
	} {
		for _, kind := range []string{"value", "not done", "final", "takeover"} {
			t.Run(test.mode.String()+" "+kind, func(t *testing.T) {
				t.Parallel()
				j := newJournal(t, refuse)
				e, in, out := j.cuttable(test.mode, refuse)
				busy := fail(dedupe.NotDone(errors.New("busy")))
				for _, call := range []func(context.Context, string) (receipt, error){busy, fail(nil)} { // all statements are prepared
					_, _ = dedupe.Do(t.Context(), e, "warm-up", nil, call)
				}
				met := map[string]int{}
				for direction, left := range map[string]*atomic.Int64{"in": in, "out": out} {
					for n := rand.IntN(test.step); n < test.bytes; n += test.step {
						key := direction + strconv.Itoa(n)
						if kind == "takeover" {
							_, _ = dedupe.Do(t.Context(), j.Effects, key, nil, busy)
						}
						left.Store(int64(n))
						calls, err := 0, error(nil)
						_, first := dedupe.Do(t.Context(), e, key, "request", func(context.Context, string) (receipt, error) {
							calls++
							switch kind {
							case "not done":
								return receipt{}, dedupe.NotDone(errors.New("busy"))
							case "final":
								return receipt{}, dedupe.Final(errors.New("declined"))
							}
							return receipt{"r", 1}, nil
						})
						whole, made := left.Swap(-1) >= 0, calls
						_, err = dedupe.Do(t.Context(), j.Effects, key, "request", charge(&calls, "again"))

						var final *dedupe.FinalError
						switch {
						case made == 0:
							met["not made"]++
							require.Error(t, first)
							require.True(t, err == nil || errors.Is(err, dedupe.ErrUnknown) || errors.Is(err, dedupe.ErrInFlight), "%v", err)
						case kind == "not done":
							met["made"]++
							require.True(t, err == nil || errors.Is(err, dedupe.ErrUnknown), "%v, %v", first, err)
						case first == nil:
							met["made"]++
							require.NoError(t, err)
							require.Equal(t, 1, calls)
						case errors.As(first, &final):
							met["made"]++
							require.ErrorAs(t, err, &final)
							require.Equal(t, 1, calls)
						default:
							met["lost"]++
							require.Equal(t, 1, calls, "%v, %v", first, err)
						}
						if whole {
							met["whole"]++
						}
					}
				}
				for _, what := range []string{"not made", "made", "whole"} {
					require.NotZero(t, met[what], "%s: %v", what, met)
				}
			})
		}
	}
}

// A context that ends at any moment: a call that was made has its outcome stored.
func TestCtxEndsAtAnyMoment(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse, Wait: -1})
	var made, notMade atomic.Int32
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 250 {
				key := fmt.Sprint(g, " ", i)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(6000))*time.Microsecond)
				calls := 0
				_, first := dedupe.Do(ctx, j.Effects, key, nil, func(context.Context, string) (receipt, error) {
					calls++
					time.Sleep(time.Millisecond)
					return receipt{"r", 1}, nil
				})
				cancel()
				if calls == 0 {
					notMade.Add(1)
					assert.Error(t, first)
					continue
				}
				made.Add(1)
				assert.NoError(t, first)
				got, err := dedupe.Do(t.Context(), j.Effects, key, nil, charge(&calls, "again"))
				assert.NoError(t, err)
				assert.Equal(t, "r", got.ID)
				assert.Equal(t, 1, calls)
			}
		})
	}
	wg.Wait()
	require.NotZero(t, made.Load())
	require.NotZero(t, notMade.Load())
}

// Twenty callers of each key, whose leases are renewed on whatever connection PgBouncer gives.
func TestManyCallersThroughPgBouncer(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	url := pgtest.Bouncer(t, j.url)
	for _, mode := range []string{"cache_describe", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			e := openEffects(t, pgtest.PoolOn(t, url+"&default_query_exec_mode="+mode), dedupe.EffectsConfig{
				Consumer: mode, Lease: 2 * time.Second, Wait: time.Minute,
			})
			var calls atomic.Int32
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					for _, key := range []string{"a", "b", "c"} {
						got, err := dedupe.Do(t.Context(), e, key, nil, func(ctx context.Context, key string) (string, error) {
							calls.Add(1)
							time.Sleep(time.Second)
							return key, ctx.Err()
						})
						assert.NoError(t, err)
						assert.Equal(t, key, got)
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, 3, calls.Load())
		})
	}
}
