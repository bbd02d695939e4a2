package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

// Main runs the tests of a package, stops what they shared, and exits. It fails where a test has left a goroutine behind; leaks
// names those that libraries are known to leave.
func Main(m *testing.M, leaks ...goleak.Option) {
	code := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(leaks...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// URL gives the URL of a fresh, empty database, which goes with the test.
func URL(t testing.TB) string {
	t.Helper()
	return newDatabase(t, "")
}

// Latin1 gives the URL of a fresh, empty database whose encoding lacks most letters.
func Latin1(t testing.TB) string {
	t.Helper()
	address, err := url.Parse(URL(t))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	t.Cleanup(cancel)
	conn, err := pgx.Connect(ctx, address.String())
	require.NoError(t, err)
	name := strings.TrimPrefix(address.Path, "/") + "_latin1"
	_, err = conn.Exec(ctx, "create database "+name+" template template0 encoding 'LATIN1' locale 'C'")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := conn.Exec(ctx, "drop database "+name+" with (force)")
		require.NoError(t, errors.Join(err, conn.Close(ctx)))
	})
	address.Path = "/" + name
	query := address.Query()
	query.Set("client_encoding", "UTF8")
	address.RawQuery = query.Encode()
	return address.String()
}

// Pool gives a pool on a fresh, empty database, which goes with the test.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return PoolOn(t, URL(t))
}

// PoolOn gives a pool that closes with the test.
func PoolOn(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { closePool(t, pool) })
	return pool
}

// closePool does not wait for ever, as Close does, for a connection that a test kept when it failed.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
		t.Errorf("%d connections were not given back to their pool", pool.Stat().AcquiredConns())
	}
}

// Server starts a server for this test alone, which it may stop and kill.
func Server(t testing.TB) *pgserver.Server {
	t.Helper()
	server, err := start()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server
}

// longest bounds what has no context of its own, with room for the download of a server.
const longest = 5 * time.Minute

func start() (*pgserver.Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	return pgserver.Start(ctx, pgserver.Config{BinDir: os.Getenv("PGBIN")})
}

// missing ends a test whose service is not there: a failure where everything must be there, elsewhere a skip.
func missing(t testing.TB, variable, format string, args ...any) {
	t.Helper()
	reason := variable + ": " + fmt.Sprintf(format, args...)
	if os.Getenv("CI") != "" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}
