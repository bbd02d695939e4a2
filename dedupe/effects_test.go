package dedupe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
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

func TestFiftyCallersOfOneKey(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			url := effectsURL(t)
			pool := pgtest.PoolOn(t, url+"&default_transaction_isolation="+strings.ReplaceAll(isolation, " ", "%20"))
			e := openEffects(t, pool, dedupe.EffectsConfig{Wait: time.Minute})
			const callers = 50
			var (
				wg       sync.WaitGroup
				mu       sync.Mutex
				calls    int
				outcomes [callers]receipt
				errs     [callers]error
			)
			for i := range callers {
				wg.Go(func() {
					outcomes[i], errs[i] = dedupe.Do(t.Context(), e, "k", "request", func(context.Context, string) (receipt, error) {
						mu.Lock()
						defer mu.Unlock()
						calls++
						return receipt{"r", calls}, nil
					})
				})
			}
			wg.Wait()
			require.Equal(t, 1, calls)
			for i := range callers {
				require.NoError(t, errs[i])
				require.Equal(t, receipt{"r", 1}, outcomes[i])
			}
		})
	}
}

func outcome[T any](t *testing.T, j *journal, key string, value T) {
	t.Helper()
	for range 2 {
		got, err := dedupe.Do(t.Context(), j.Effects, key, nil, func(context.Context, string) (T, error) { return value, nil })
		require.NoError(t, err)
		require.Equal(t, value, got)
	}
	got, err := dedupe.Do(t.Context(), j.Effects, key, nil, func(context.Context, string) (none T, _ error) { panic("called") })
	require.NoError(t, err)
	require.Equal(t, value, got)
}

func TestOutcomesOfEveryType(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	outcome(t, j, "struct", receipt{"r", 1})
	outcome(t, j, "pointer", &receipt{"r", 1})
	outcome(t, j, "nil pointer", (*receipt)(nil))
	outcome(t, j, "string", "a \"b\" \x00 é 😀 <>&\u2028")
	outcome(t, j, "empty string", "")
	outcome(t, j, "int", int64(1)<<62+1)
	outcome(t, j, "slice", []receipt{{"a", 1}, {"b", 2}})
	outcome(t, j, "empty slice", []int{})
	outcome(t, j, "nil slice", []int(nil))
	outcome(t, j, "bytes", []byte{0, 1, 255})
	outcome(t, j, "map", map[string]int{"a": 1})
	outcome(t, j, "none", struct{}{})
	outcome(t, j, "any", any(nil))
	outcome(t, j, "large", strings.Repeat("x", 1<<20))
	outcome(t, j, strings.Repeat("é", 256), "the longest key")
}

// The first caller is given what later ones will be given, so that what JSON does not carry is missed at once.
func TestOutcomeIsWhatIsStored(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	type half struct {
		Kept   string
		hidden string
	}
	got, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (half, error) { return half{"a", "b"}, nil })
	require.NoError(t, err)
	require.Equal(t, half{"a", ""}, got)
	_, err = dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (int, error) { return 1, nil })
	require.ErrorContains(t, err, "no int")

	_, err = dedupe.Do(t.Context(), j.Effects, "c", nil, func(context.Context, string) (chan int, error) { panic("called") })
	require.ErrorContains(t, err, "not for JSON")
	// A value of a good type that is none for JSON is found out after the call.
	_, err = dedupe.Do(t.Context(), j.Effects, "a", nil, func(context.Context, string) (any, error) { return make(chan int), nil })
	require.ErrorContains(t, err, "outcome")
	require.Equal(t, "unknown", j.state("a"))
}

func TestRawMessageNotUTF8(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	calls := 0
	for range 3 {
		got, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (json.RawMessage, error) {
			calls++
			return json.RawMessage("{\"name\":\"Andr\xe9\"}"), nil // a body as it came
		})
		require.NoError(t, err)
		require.JSONEq(t, "{\"name\":\"Andr\uFFFD\"}", string(got))
	}
	require.Equal(t, 1, calls)
}

type status int

func (s status) MarshalText() ([]byte, error) {
	if s == 0 {
		return nil, errors.New("no such status")
	}
	return []byte("paid"), nil
}
func (s *status) UnmarshalText([]byte) error { *s = 1; return nil }

// Whether a type is for JSON must not be judged by its zero value.
func TestZeroValueIsNoJSON(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (status, error) { return 1, nil })
	require.NoError(t, err)
}

// An outcome may be a secret, and errors are logged.
func TestErrorDoesNotShowTheOutcome(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	j.abandon("k")
	require.NoError(t, j.Resolve(t.Context(), "k", 4111111111111111))
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (int32, error) { return 0, nil })
	require.NotContains(t, err.Error(), "4111111111111111")
}

func TestOutcomeOfManyMegabytes(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	call := func(context.Context, string) (string, error) { return strings.Repeat("\u0000<\xff", 1<<18), nil }
	first, err := dedupe.Do(t.Context(), j.Effects, "k", nil, call)
	require.NoError(t, err)
	require.True(t, first == strings.Repeat("\u0000<\uFFFD", 1<<18)) // a failure is not to print it
	second, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (string, error) { panic("called") })
	require.NoError(t, err)
	require.True(t, first == second)
}

func TestDoChecksTheKey(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	for _, key := range []string{"", strings.Repeat("x", 513), "\xff", "a\x00"} {
		_, err := dedupe.Do(t.Context(), j.Effects, key, nil, fail(errors.New("called")))
		require.ErrorIs(t, err, dedupe.ErrInvalidKey)
		require.ErrorIs(t, j.Resolve(t.Context(), key, nil), dedupe.ErrInvalidKey)
	}
}

func TestWaitForAnOutcome(t *testing.T) {
	t.Parallel()
	type result struct {
		receipt
		error
	}
	// During the call of one, another waits.
	during := func(t *testing.T, j *journal, ctx context.Context, wait time.Duration, then func(context.Context) (receipt, error)) (first, second result) {
		other := j.with(dedupe.EffectsConfig{Wait: wait, OnUnknown: dedupe.Refuse})
		seconds := make(chan result, 1)
		got, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(callCtx context.Context, _ string) (receipt, error) {
			go func() {
				got, err := dedupe.Do(ctx, other.Effects, "k", nil, fail(errors.New("called twice")))
				seconds <- result{got, err}
			}()
			if then == nil {
				second = <-seconds
				return receipt{"r", 1}, nil
			}
			return then(callCtx)
		})
		if then != nil {
			second = <-seconds
		}
		return result{got, err}, second
	}
	t.Run("it arrives", func(t *testing.T) {
		t.Parallel()
		j := newJournal(t, dedupe.EffectsConfig{})
		first, second := during(t, j, t.Context(), time.Minute, func(context.Context) (receipt, error) {
			j.waitForLooks()
			return receipt{"r", 1}, nil
		})
		require.NoError(t, first.error)
		require.Equal(t, first, second)
	})
	t.Run("it does not", func(t *testing.T) {
		t.Parallel()
		first, second := during(t, newJournal(t, dedupe.EffectsConfig{}), t.Context(), 50*time.Millisecond, nil)
		require.NoError(t, first.error)
		require.ErrorIs(t, second.error, dedupe.ErrInFlight)
	})
	t.Run("the context ends", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		first, second := during(t, newJournal(t, dedupe.EffectsConfig{}), ctx, time.Minute, nil)
		require.NoError(t, first.error)
		require.ErrorIs(t, second.error, context.DeadlineExceeded)
	})
	t.Run("it ends unknown", func(t *testing.T) {
		t.Parallel()
		first, second := during(t, newJournal(t, dedupe.EffectsConfig{}), t.Context(), time.Minute, func(context.Context) (receipt, error) {
			return receipt{}, errors.New("timeout")
		})
		require.ErrorContains(t, first.error, "timeout")
		require.ErrorIs(t, second.error, dedupe.ErrUnknown)
	})
	t.Run("the other has died", func(t *testing.T) {
		t.Parallel()
		j := newJournal(t, dedupe.EffectsConfig{Wait: time.Minute})
		j.abandon("k")
		j.exec(`update watermill_effects set lease_until = clock_timestamp() + interval '200 ms'`)
		calls := 0
		got, err := dedupe.Do(t.Context(), j.Effects, "k", nil, charge(&calls, "r"))
		require.NoError(t, err)
		require.Equal(t, "r", got.ID)
	})
}

// waitForLooks returns when somebody has looked at the journal some times more.
func (j *journal) waitForLooks() {
	j.t.Helper()
	looks := func() (n int) {
		err := j.pool.QueryRow(context.Background(), `select pg_stat_get_xact_numscans('watermill_effects'::regclass)
			+ coalesce(sum(idx_scan), 0) from pg_stat_user_indexes where relname = 'watermill_effects'`).Scan(&n)
		require.NoError(j.t, err)
		return n
	}
	first := looks()
	require.Eventually(j.t, func() bool { return looks() > first }, 20*time.Second, 5*time.Millisecond)
}

func TestPanicInTheCall(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(){"panic": func() { panic("oh") }, "Goexit": runtime.Goexit} {
		j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse})
		var recovered any
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { recovered = recover() }()
			_, _ = dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (int, error) {
				end()
				return 0, nil
			})
		}()
		<-done
		require.Equal(t, name == "panic", recovered == "oh")
		require.Equal(t, "unknown", j.state("k"))
		list, err := j.List(t.Context(), dedupe.Unknown, 1)
		require.NoError(t, err)
		require.Contains(t, list[0].LastError, "panic")
		require.NotContains(t, list[0].LastError, "oh")
	}
}

// The caller's context ends the call by its own, and never the storing of what it returns.
func TestContextEndsDuringTheCall(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err   error
		state string
	}{"value": {nil, "done"}, "error": {context.Canceled, "unknown"}, "not done": {dedupe.NotDone(context.Canceled), "free"}} {
		j := newJournal(t, dedupe.EffectsConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		_, err := dedupe.Do(ctx, j.Effects, "k", nil, func(callCtx context.Context, _ string) (receipt, error) {
			cancel()
			<-callCtx.Done()
			return receipt{"r", 1}, test.err
		})
		require.Equal(t, test.err, err, name)
		require.Equal(t, test.state, j.state("k"), name)
		_, err = dedupe.Do(ctx, j.Effects, "other", nil, fail(errors.New("called")))
		require.ErrorIs(t, err, context.Canceled)
	}
}

// Round trips are counted on the wire, once the statements are prepared.
func TestDoRoundTrips(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	proxy, url := pgtest.Proxy(t, j.url)
	e := openEffects(t, pgtest.PoolOn(t, url), dedupe.EffectsConfig{})
	do := func(key string, err error) {
		_, got := dedupe.Do(t.Context(), e, key, "request", fail(err))
		require.Equal(t, err, got)
	}
	x := errors.New("x")
	for _, key := range []string{"warm", "up"} {
		do(key, x)
		do(key, nil)
	}
	for _, test := range []struct {
		name string
		err  error
		want int
	}{
		{"fresh", nil, 2}, {"fresh", nil, 1}, {"error", x, 2}, {"error", x, 3}, {"error", nil, 3}, {"error", nil, 1},
	} {
		proxy.Reset()
		do(test.name, test.err)
		require.Equal(t, test.want, proxy.RoundTrips(), test.name)
	}
}

func TestDoInEveryExecMode(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	do := func(t *testing.T, url string, mode pgx.QueryExecMode) {
		config, err := pgxpool.ParseConfig(url)
		require.NoError(t, err)
		config.ConnConfig.DefaultQueryExecMode = mode
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		e := openEffects(t, pool, dedupe.EffectsConfig{Consumer: t.Name(), Lease: 3 * time.Second})
		for _, err := range []error{errors.New(`it's a "\ $1`), dedupe.NotDone(errors.New("x")), nil, errors.New("called")} {
			got, doErr := dedupe.Do(t.Context(), e, `it's a "\ $1`, bytes.Repeat([]byte{0, 255}, 3), func(ctx context.Context, key string) (string, error) {
				first := j.leaseEnd(key, t.Name())
				require.Eventually(t, func() bool { return j.leaseEnd(key, t.Name()).After(first) }, 20*time.Second, 2*time.Millisecond)
				return `it's a "\ $1`, errors.Join(ctx.Err(), err)
			})
			if err != nil && err.Error() != "called" {
				require.ErrorContains(t, doErr, err.Error())
				continue
			}
			require.NoError(t, doErr)
			require.Equal(t, `it's a "\ $1`, got)
		}
		require.NoError(t, func() error { _, err := e.List(t.Context(), dedupe.Unknown, 1); return err }())
		require.ErrorIs(t, e.Resolve(t.Context(), `it's a "\ $1`, nil), dedupe.ErrNotUnknown)
	}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) { t.Parallel(); do(t, j.url, mode) })
	}
	bouncer := pgtest.Bouncer(t, j.url)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run("PgBouncer "+mode.String(), func(t *testing.T) { t.Parallel(); do(t, bouncer, mode) })
	}
}

func TestDoAtEveryIsolationLevel(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	for _, level := range []string{"serializable", "repeatable%20read"} {
		e := openEffects(t, pgtest.PoolOn(t, j.url+"&default_transaction_isolation="+level), dedupe.EffectsConfig{Wait: time.Minute})
		var calls atomic.Int32
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for k := range 10 {
					_, err := dedupe.Do(t.Context(), e, fmt.Sprint(level, k), nil, func(context.Context, string) (int, error) {
						calls.Add(1)
						return 1, nil
					})
					assert.NoError(t, err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 10, calls.Load())
	}
}
