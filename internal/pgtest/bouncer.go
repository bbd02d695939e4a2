package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/child"
)

// bouncerConfig makes it likely that a client meets another backend at each of its transactions, where the mode lets it, as it
// does in a busy installation.
const bouncerConfig = `
[databases]
* = host='%s' port=%d user='%s' password='%s'
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = md5
auth_file = users
pool_mode = %s
default_pool_size = 10
server_round_robin = 1
max_client_conn = 500
ignore_startup_parameters = extra_float_digits
`

// Bouncer starts PgBouncer in transaction mode in front of the server of address, for this test, and gives the URL of the same
// database through it. PGBOUNCER names the program where it is not on PATH.
func Bouncer(t testing.TB, address string) string {
	t.Helper()
	return BouncerIn(t, "transaction", address)
}

// BouncerIn is Bouncer in another of its modes: session or statement.
func BouncerIn(t testing.TB, mode, address string) string {
	t.Helper()
	program := bouncerProgram(t)
	config, err := pgx.ParseConfig(address)
	require.NoError(t, err)
	account, err := child.FindAccount("postgres", "nobody")
	require.NoError(t, err)
	dir, err := account.TempDir(t.Context(), "pgbouncer-", os.TempDir(), "/tmp")
	require.NoError(t, err)
	guard, err := child.NewGuard(dir, "")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, guard.Close()) })

	port, err := child.FreePort()
	require.NoError(t, err)
	quote := func(s string) string { return strings.ReplaceAll(s, "'", "''") }
	ini := fmt.Sprintf(bouncerConfig, config.Host, config.Port, quote(config.User), quote(config.Password), port, mode)
	require.NoError(t, account.WriteFile(filepath.Join(dir, "ini"), ini))
	double := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
	users := double(config.User) + " " + double(config.Password) + "\n"
	require.NoError(t, account.WriteFile(filepath.Join(dir, "users"), users))

	log := child.NewTail(io.Discard)
	process, err := account.Start(dir, log, program, "ini")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, process.End(syscall.SIGKILL, time.Minute)) })
	require.NoError(t, guard.Watch(process))

	through := via(t, address, config, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	require.NoError(t, answers(t.Context(), process, through), "%s", log)
	return through
}

func bouncerProgram(t testing.TB) string {
	t.Helper()
	names := []string{"pgbouncer", "/usr/sbin/pgbouncer"} // Debian keeps it out of the PATH of ordinary users
	if name := os.Getenv("PGBOUNCER"); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		if program, err := exec.LookPath(name); err == nil {
			return program
		}
	}
	missing(t, "PGBOUNCER", "there is no program %q", names)
	return ""
}

// answers waits until the child takes connections.
func answers(ctx context.Context, process *child.Process, address string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, address)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-process.Done():
			return errors.New("pgbouncer ended")
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
