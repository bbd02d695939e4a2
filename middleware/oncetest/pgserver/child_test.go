//go:build unix

package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// childMode is set where the test binary is to be a program that starts a server and waits for its end; "killed": of which it has
// killed the server before.
const childMode = "PGSERVER_TEST_CHILD"

func beChild() int {
	s, err := Start(context.Background(), Config{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	memory, err := os.ReadFile(s.dataDir() + "/postmaster.pid")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	pid := s.process.PID()
	if os.Getenv(childMode) == "killed" {
		if err := s.Kill(); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	fmt.Println(pid, s.guard.PID(), s.dir, strings.Fields(strings.Split(string(memory), "\n")[6])[1])
	select {}
}

// program is a running beChild.
type program struct {
	*exec.Cmd
	server, guard int
	dir, memory   string
	grace         time.Duration // within which all must be gone
}

func startProgram(t *testing.T, mode string, change func(*exec.Cmd)) program {
	t.Helper()
	start := time.Now()
	p := program{Cmd: exec.Command(os.Args[0])}
	p.Env = append(os.Environ(), childMode+"="+mode)
	if change != nil {
		change(p.Cmd)
	}
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "%s", line)
	_, err = fmt.Sscan(line, &p.server, &p.guard, &p.dir, &p.memory)
	require.NoError(t, err, "%s", line)
	// Two seconds are promised, of a machine that is not so busy that the start takes longer.
	p.grace = max(2*time.Second, time.Since(start))
	return p
}

func TestNoOrphan(t *testing.T) {
	t.Parallel()
	tests := []struct {
		signal syscall.Signal
		mode   string
	}{
		{syscall.SIGKILL, "running"},
		{syscall.SIGINT, "running"},
		{syscall.SIGTERM, "running"},
		{syscall.SIGKILL, "killed"},
	}
	for _, test := range tests {
		t.Run(test.signal.String()+", server "+test.mode, func(t *testing.T) {
			t.Parallel()
			p := startProgram(t, test.mode, nil)
			require.Equal(t, test.mode == "running", alive(p.server))
			require.NoError(t, p.Process.Signal(test.signal))
			_ = p.Wait()
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				assert.False(c, alive(p.server), "the server runs")
				assert.False(c, alive(p.guard), "the guard runs")
				assert.NoDirExists(c, p.dir)
			}, p.grace, 5*time.Millisecond)
			require.False(t, sharedMemoryExists(t, p.memory))
		})
	}
}

// A guard can be killed too; then there is the kernel.
func TestNoOrphanWithoutTheGuard(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("only Linux ends a child with its parent")
	}
	p := startProgram(t, "running", nil)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(p.dir)) })
	require.NoError(t, syscall.Kill(p.guard, syscall.SIGKILL))
	require.NoError(t, p.Process.Kill())
	_ = p.Wait()
	require.Eventually(t, func() bool { return !alive(p.server) }, p.grace, 5*time.Millisecond)
}

// A program that is not root starts a server as itself. Where the tests run as root, one is run as nobody.
func TestStartAsAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	want := os.Geteuid()
	p := startProgram(t, "running", func(cmd *exec.Cmd) {
		if want != 0 {
			return
		}
		nobody, err := user.Lookup("nobody")
		require.NoError(t, err)
		uid, gid := itoa32(t, nobody.Uid), itoa32(t, nobody.Gid)
		want = int(uid)
		dir := publicDir(t)
		home := filepath.Join(dir, "home")
		require.NoError(t, os.Mkdir(home, 0o700))
		require.NoError(t, os.Chown(home, int(uid), int(gid)))
		// The binary lies where root alone gets at it.
		cmd.Path = filepath.Join(dir, "test")
		binary, err := os.ReadFile(os.Args[0])
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(cmd.Path, binary, 0o755))
		cmd.Dir, cmd.Env = "/", append(cmd.Env, "HOME="+home, "XDG_CACHE_HOME=")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	})
	info, err := os.Stat(p.dir)
	require.NoError(t, err)
	require.EqualValues(t, want, info.Sys().(*syscall.Stat_t).Uid)
	require.NoError(t, p.Process.Kill())
	_ = p.Wait()
	require.Eventually(t, func() bool {
		_, err := os.Stat(p.dir)
		return err != nil && !alive(p.server)
	}, p.grace, 5*time.Millisecond)
}

func TestStartAsAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can start a server as another user")
	}
	s := startServer(t, Config{User: "nobody"})
	require.Equal(t, "1", query(t, s.URL("postgres"), "select 1"))
	nobody, err := user.Lookup("nobody")
	require.NoError(t, err)
	info, err := os.Stat(s.dataDir())
	require.NoError(t, err)
	require.EqualValues(t, itoa32(t, nobody.Uid), info.Sys().(*syscall.Stat_t).Uid)

	_, err = Start(t.Context(), Config{User: "no such user"})
	require.ErrorContains(t, err, "no such user")
	_, err = Start(t.Context(), Config{User: "root"})
	require.ErrorContains(t, err, "root")
}

// alive does not count a zombie, which is what the container's first process makes of an orphan that it does not look after.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + itoa(pid) + "/stat")
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) || !isDir("/proc/self")
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func itoa(n int) string { return strconv.Itoa(n) }

func itoa32(t testing.TB, s string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 32)
	require.NoError(t, err)
	return uint32(n)
}

// waitFor waits until the query gives true.
func waitFor(t testing.TB, url, condition string) {
	t.Helper()
	waitUntil(t, func() bool { return query(t, url, condition) == "t" }, condition)
}

func waitUntil(t testing.TB, condition func() bool, what string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !condition() {
		require.True(t, time.Now().Before(deadline), what)
		time.Sleep(time.Millisecond)
	}
}
