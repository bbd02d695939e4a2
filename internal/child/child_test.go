//go:build unix

package child_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-once/watermill-once/internal/child"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func account(t *testing.T) (a *child.Account, dir string) {
	t.Helper()
	a, err := child.FindAccount("postgres", "nobody")
	require.NoError(t, err)
	dir, err = a.TempDir(t.Context(), "child-", "/nowhere", "/tmp")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return a, dir
}

func TestAccountIsNeverRoot(t *testing.T) {
	t.Parallel()
	a, dir := account(t)
	require.NotZero(t, a.UID)
	require.True(t, a.Owns(dir))
	var out bytes.Buffer
	p, err := a.Start(dir, &out, "/bin/sh", "-c", "id -u; env")
	require.NoError(t, err)
	<-p.Done()
	uid, env, _ := strings.Cut(out.String(), "\n")
	require.NotEqual(t, "0", uid)
	for line := range strings.Lines(env) {
		name, _, _ := strings.Cut(line, "=")
		require.Contains(t, "LC_ALL TZ HOME PATH LD_LIBRARY_PATH DYLD_LIBRARY_PATH PWD SHLVL _", name, "nothing else is passed on")
	}
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	a, dir := account(t)
	_, err := a.Start(dir, io.Discard, "/nowhere/program")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, a.Run(t.Context(), dir, "/bin/sh", "-c", "echo why >&2; exit 3"), "why")
}

func TestEnd(t *testing.T) {
	t.Parallel()
	a, dir := account(t)
	p, err := a.Start(dir, io.Discard, "/bin/sleep", "60")
	require.NoError(t, err)
	require.NoError(t, p.End(syscall.SIGTERM, time.Minute))
	require.NoError(t, p.End(syscall.SIGTERM, time.Minute), "again")

	ready := make(chan struct{})
	p, err = a.Start(dir, signalWriter(ready), "/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
	require.NoError(t, err)
	<-ready
	require.ErrorContains(t, p.End(syscall.SIGTERM, 10*time.Millisecond), "was killed")
	<-p.Done()
}

type signalWriter chan struct{}

func (w signalWriter) Write(p []byte) (int, error) {
	close(w)
	return len(p), nil
}

func TestGuard(t *testing.T) {
	t.Parallel()
	a, dir := account(t)
	witness := filepath.Join(t.TempDir(), "witness")
	g, err := child.NewGuard(dir, "cp file "+witness)
	require.NoError(t, err)
	require.NoError(t, a.WriteFile(filepath.Join(dir, "file"), "text"))
	p, err := a.Start(dir, io.Discard, "/bin/sleep", "3600")
	require.NoError(t, err)
	require.NoError(t, g.Watch(p))
	require.NoError(t, g.Close())
	require.NoError(t, p.End(syscall.Signal(0), 10*time.Second), "it was ended, and not here")
	require.NoDirExists(t, dir)
	require.FileExists(t, witness)
}

func TestGuardThatWasKilled(t *testing.T) {
	t.Parallel()
	_, dir := account(t)
	g, err := child.NewGuard(dir, "")
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(g.PID(), syscall.SIGKILL))
	require.NoError(t, g.Close())
	require.NoDirExists(t, dir)
}

func TestTail(t *testing.T) {
	t.Parallel()
	var all bytes.Buffer
	tail := child.NewTail(&all)
	for range 100 {
		_, err := tail.Write(bytes.Repeat([]byte("x"), 1<<10))
		require.NoError(t, err)
	}
	_, err := tail.Write([]byte("last\n"))
	require.NoError(t, err)
	require.Len(t, all.Bytes(), 100<<10+5)
	require.Less(t, len(tail.String()), 70<<10)
	require.True(t, strings.HasSuffix(tail.String(), "xlast"))
	tail.Reset()
	require.Empty(t, tail.String())
}
