package pgtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

// Clock is a server whose clock can be wrong.
type Clock struct {
	*pgserver.Server
	file string // what libfaketime reads at each look at the clock
}

// ClockServer starts a server for this test whose clock goes as SetOff tells, under libfaketime. LIBFAKETIME names that library where
// it is not in Debian's place.
func ClockServer(t testing.TB) *Clock {
	t.Helper()
	library := faketime(t)
	binaries := binDir(t)
	dir, err := os.MkdirTemp("", "clock-") // t.TempDir is closed to the server's account
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))

	c := &Clock{file: filepath.Join(dir, "offset")}
	require.NoError(t, c.SetOff(0))
	script(t, dir, "initdb", fmt.Sprintf("exec '%s/initdb' \"$@\"", binaries))
	// Timers go on as they do: it is the time of day that is wrong.
	script(t, dir, "postgres", fmt.Sprintf("LD_PRELOAD='%s' FAKETIME_TIMESTAMP_FILE='%s' FAKETIME_NO_CACHE=1 "+
		"FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_DISABLE_SHM=1 exec '%s/postgres' \"$@\"", library, c.file, binaries))

	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	c.Server, err = pgserver.Start(ctx, pgserver.Config{BinDir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// SetOff makes the server's clock jump: it is ahead of the machine's by d from now on.
func (c *Clock) SetOff(d time.Duration) error {
	next := c.file + ".next"
	if err := os.WriteFile(next, []byte(fmt.Sprintf("%+.3f\n", d.Seconds())), 0o644); err != nil {
		return err
	}
	return os.Rename(next, c.file)
}

func script(t testing.TB, dir, name, line string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+line+"\n"), 0o755))
}

func faketime(t testing.TB) string {
	t.Helper()
	patterns := []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1"}
	if library := os.Getenv("LIBFAKETIME"); library != "" {
		patterns = []string{library}
	}
	for _, pattern := range patterns {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0]
		}
	}
	missing(t, "LIBFAKETIME", "there is no %s", strings.Join(patterns, " and no "))
	return ""
}

// binDir asks a server where its binaries are.
func binDir(t testing.TB) (dir string) {
	t.Helper()
	server, err := start()
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	require.NoError(t, conn.QueryRow(t.Context(), `select setting from pg_config where name = 'BINDIR'`).Scan(&dir))
	return dir
}
