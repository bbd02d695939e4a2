package dedupe_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/internal/tcpproxy"
)

// processLease is that of the process that is to die or to stop.
const processLease = 4 * time.Second

// TestEffectsChild is that process, when another test has started it. Its call tells when it has begun, charges when it is told to,
// and returns when it is told to.
func TestEffectsChild(t *testing.T) {
	url := os.Getenv("EFFECTS_URL")
	if url == "" {
		return // run by the tests below
	}
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	defer pool.Close()
	e := openEffects(t, pool, dedupe.EffectsConfig{Lease: processLease})
	told := bufio.NewScanner(os.Stdin)
	_, err = dedupe.Do(t.Context(), e, "k", nil, func(ctx context.Context, _ string) (receipt, error) {
		fmt.Println("> in the call")
		told.Scan()
		fmt.Println("> charged")
		told.Scan()
		if told.Text() == "when told to end" {
			<-ctx.Done()
		}
		fmt.Println("> returning", context.Cause(ctx))
		return receipt{"child", 1}, nil
	})
	fmt.Println(">", err)
	told.Scan() // until the parent has seen enough
}

type process struct {
	t     *testing.T
	cmd   *osexec.Cmd
	stdin io.WriteCloser
	lines chan string
}

func startProcess(t *testing.T, url string) *process {
	t.Helper()
	cmd := osexec.Command(os.Args[0], "-test.run=^TestEffectsChild$")
	cmd.Env = append(os.Environ(), "EFFECTS_URL="+url)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{t, cmd, stdin, make(chan string, 10)}
	go func() {
		defer close(p.lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			if line, ok := strings.CutPrefix(scanner.Text(), "> "); ok {
				p.lines <- line
			}
		}
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *process) expect(line string) {
	p.t.Helper()
	select {
	case got := <-p.lines:
		require.Contains(p.t, got, line)
	case <-time.After(time.Minute):
		require.Fail(p.t, "the child does not say it: "+line)
	}
}

func (p *process) tell(line string) {
	p.t.Helper()
	_, err := io.WriteString(p.stdin, line+"\n")
	require.NoError(p.t, err)
}

func (p *process) signal(signal syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(signal))
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	for range p.lines { // until its end is closed
	}
	_ = p.cmd.Wait()
	_ = p.stdin.Close()
}

// A process is killed by kill -9. Its call is in flight until the lease is over, and unknown from then on, wherever it was: what
// cannot be told apart from outside is not told apart.
func TestKilled(t *testing.T) {
	t.Parallel()
	for name, die := range map[string]func(j *journal, p *process, proxy *tcpproxy.Proxy){
		"in the call, before the charge": func(_ *journal, p *process, _ *tcpproxy.Proxy) { p.expect("in the call") },
		"in the call, after the charge": func(_ *journal, p *process, _ *tcpproxy.Proxy) {
			p.expect("in the call")
			p.tell("go on")
			p.expect("charged")
		},
		"between call and outcome": func(_ *journal, p *process, proxy *tcpproxy.Proxy) {
			p.expect("in the call")
			p.tell("go on")
			p.expect("charged")
			proxy.Hold(tcpproxy.ToServer, true)
			p.tell("go on")
			p.expect("returning")
		},
		"between intent and call": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJournal(t, dedupe.EffectsConfig{Wait: -1})
			proxy, url := pgtest.Proxy(t, j.url)
			if die == nil { // the intent is committed, and its answer does not come
				proxy.OnData(func(d tcpproxy.Direction, piece []byte) bool {
					if d == tcpproxy.FromServer && strings.Contains(string(piece), "INSERT 0 1\x00") {
						proxy.Hold(tcpproxy.FromServer, true)
					}
					return true
				})
				die = func(j *journal, _ *process, _ *tcpproxy.Proxy) {
					require.Eventually(t, func() bool {
						counts, err := j.Count(t.Context())
						return err == nil && counts.Running == 1
					}, time.Minute, 5*time.Millisecond)
				}
			}
			p := startProcess(t, url)
			die(j, p, proxy)
			p.kill()
			proxy.Cut()

			refuse := j.with(dedupe.EffectsConfig{OnUnknown: dedupe.Refuse, Wait: -1})
			_, err := dedupe.Do(t.Context(), refuse.Effects, "k", nil, fail(errors.New("called")))
			require.ErrorIs(t, err, dedupe.ErrInFlight, "the lease is not over")
			require.Eventually(t, func() bool {
				_, err := dedupe.Do(t.Context(), refuse.Effects, "k", nil, fail(errors.New("called")))
				return errors.Is(err, dedupe.ErrUnknown)
			}, time.Minute, 10*time.Millisecond)
			j.requireCounts(0, 1, 0)

			calls := 0
			got, err := dedupe.Do(t.Context(), j.Effects, "k", nil, charge(&calls, "again"))
			require.NoError(t, err)
			require.Equal(t, "again", got.ID)
			require.Equal(t, 1, calls)
		})
	}
}

// A process is stopped in its call, and wakes when its lease is another's: it is told so, and stores nothing.
func TestStoppedAndTakenOver(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"done", "in flight"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			j := newJournal(t, dedupe.EffectsConfig{Wait: time.Minute})
			p := startProcess(t, j.url)
			p.expect("in the call")
			p.signal(syscall.SIGSTOP)
			wake := func() {
				p.signal(syscall.SIGCONT)
				p.tell("go on")
				p.expect("charged")
				p.tell("when told to end")
				p.expect("returning " + dedupe.ErrLeaseLost.Error())
				p.expect(dedupe.ErrLeaseLost.Error())
			}
			got, err := dedupe.Do(t.Context(), j.Effects, "k", nil, func(context.Context, string) (receipt, error) {
				if state == "in flight" {
					wake()
				}
				return receipt{"new", 1}, nil
			})
			require.NoError(t, err)
			require.Equal(t, "new", got.ID)
			if state == "done" {
				wake()
			}
			got, err = dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("called")))
			require.NoError(t, err)
			require.Equal(t, "new", got.ID)
		})
	}
}
