//go:build unix

package pgserver

import (
	"bytes"
	"context"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(childMode) != "" {
		os.Exit(beChild())
	}
	goleak.VerifyTestMain(m)
}

func TestStart(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	require.Equal(t, "1", query(t, s.URL("postgres"), "select 1"), "TCP, pgx")
	require.Equal(t, "1", query(t, s.SocketURL("postgres"), "select 1"), "socket, pgx")

	db, err := sql.Open("postgres", s.URL("postgres"))
	require.NoError(t, err)
	require.NoError(t, db.PingContext(t.Context()), "TCP, lib/pq")
	require.NoError(t, db.Close())
}

func TestStartAsksForThePassword(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	u, err := url.Parse(s.URL("postgres"))
	require.NoError(t, err)
	u.User = url.UserPassword(superuser, "guess")
	_, err = pgx.Connect(t.Context(), u.String())
	require.ErrorContains(t, err, "28P01")

	info, err := os.Stat(s.dir)
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o700, info.Mode(), "nobody else gets at the socket, which asks for none")
}

func TestStartAtOnce(t *testing.T) {
	t.Parallel()
	ports := map[string]bool{}
	for range 3 {
		ports[startServer(t, Config{}).Addr()] = true
	}
	require.Len(t, ports, 3)
}

func TestParams(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := startServer(t, Config{
		Params: map[string]string{"max_connections": "17", "log_min_messages": "log"},
		Fsync:  true, Log: &log,
	})
	require.Equal(t, "17", query(t, s.URL("postgres"), "show max_connections"))
	require.Equal(t, "on", query(t, s.URL("postgres"), "show fsync"))
	require.NoError(t, s.Close())
	require.Contains(t, log.String(), "ready to accept connections")
}

func TestStartSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Config{Params: map[string]string{"max_connections": "many"}})
	require.ErrorContains(t, err, `invalid value for parameter "max_connections"`, "as the server's log has it")

	_, err = Start(t.Context(), Config{BinDir: "/nowhere", CacheDir: "here", Params: map[string]string{"port": "5432"}})
	for _, fault := range []string{"/nowhere/initdb", "CacheDir", "setting port"} {
		require.ErrorContains(t, err, fault)
	}
}

// Not parallel: it looks for what is left in the directory for temporary files.
func TestNothingIsLeft(t *testing.T) {
	tmp := publicDir(t)
	t.Setenv("TMPDIR", tmp)
	left := func() string {
		entries, err := os.ReadDir(tmp)
		require.NoError(t, err)
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		return strings.Join(names, " ")
	}
	s := startServer(t, Config{})
	require.NotEmpty(t, left(), "it runs elsewhere")
	require.NoError(t, s.Close())
	require.Empty(t, left())
	require.ErrorContains(t, s.Restart(t.Context()), "closed")

	_, err := Start(t.Context(), Config{Params: map[string]string{"max_connections": "many"}})
	require.Error(t, err)
	require.Empty(t, left(), "after a failed start")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Start(ended, Config{})
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, left(), "after an ended context")
}

// Not parallel: it chooses where initdb's result is kept.
func TestStartKeepsWhatInitdbMade(t *testing.T) {
	cache := publicDir(t)
	first := startServer(t, Config{CacheDir: cache})
	kept := first.initCache()
	require.True(t, first.account.Owns(kept))
	require.Equal(t, "0", query(t, first.URL("postgres"), "select count(*) from pg_class where relname = 'made'"))
	query(t, first.URL("postgres"), "create table made as select 1; select 1")

	marker := kept + "/marker"
	require.NoError(t, first.account.WriteFile(marker, ""))
	second := startServer(t, Config{CacheDir: cache})
	require.FileExists(t, second.dataDir()+"/marker", "it started from a copy")
	require.Equal(t, "0", query(t, second.URL("postgres"), "select count(*) from pg_class where relname = 'made'"))

	require.NoError(t, os.Chmod(kept, 0o777))
	third := startServer(t, Config{CacheDir: cache})
	require.NoFileExists(t, third.dataDir()+"/marker", "what others can write to is not trusted")
}

// startServer starts a server that ends with the test.
func startServer(t testing.TB, config Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoDirExists(t, s.dir)
	})
	return s
}

// query gives the one value that a query returns.
func query(t testing.TB, url, query string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	results, err := conn.PgConn().Exec(t.Context(), query).ReadAll()
	require.NoError(t, err)
	return string(results[len(results)-1].Rows[0][0])
}

// publicDir is a directory that other accounts get at, as t.TempDir is not.
func publicDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pgservertest-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}
