package pgtest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestURLIsADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]bool{}
	t.Run("tests", func(t *testing.T) {
		for range 4 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t)
				_, err := pool.Exec(t.Context(), "create table made (id int)")
				require.NoError(t, err, "it is empty")
				var name string
				require.NoError(t, pool.QueryRow(t.Context(), "select current_database()").Scan(&name))
				mu.Lock()
				defer mu.Unlock()
				seen[name] = true
			})
		}
	})
	require.Len(t, seen, 4)
	rows, err := pgtest.Pool(t).Query(t.Context(), "select datname from pg_database")
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	for name := range seen {
		require.NotContains(t, names, name, "it went with its test")
	}
}

// A test that forgets to close its connections does not keep its database.
func TestURLGoesThoughItIsInUse(t *testing.T) {
	t.Parallel()
	var conn *pgx.Conn
	t.Run("", func(t *testing.T) {
		var err error
		conn, err = pgx.Connect(t.Context(), pgtest.URL(t))
		require.NoError(t, err)
	})
	require.Error(t, conn.Ping(t.Context()))
}

func TestFromTemplate(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	runs := 0
	t.Run("copies", func(t *testing.T) {
		for range 4 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				url := pgtest.FromTemplate(t, "TestFromTemplate", func(ctx context.Context, conn *pgx.Conn) error {
					mu.Lock()
					runs++
					mu.Unlock()
					_, err := conn.Exec(ctx, "create table made as select 1 as id")
					return err
				})
				pool := pgtest.PoolOn(t, url)
				_, err := pool.Exec(t.Context(), "insert into made values (2)")
				require.NoError(t, err)
				var n int
				require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from made").Scan(&n))
				require.Equal(t, 2, n)
			})
		}
	})
	require.Equal(t, 1, runs)
}

func TestServerIsOneOfItsOwn(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	shared := pgtest.Pool(t)
	require.NoError(t, server.Kill())
	require.NoError(t, shared.Ping(t.Context()))
	require.NoError(t, server.Restart(t.Context()))
	require.NoError(t, pgtest.PoolOn(t, server.URL("postgres")).Ping(t.Context()))
}

// A package's tests as `go test` runs them: this binary again, with one of the tests below, and another environment.
func TestMainFrom(t *testing.T) {
	t.Parallel()
	const nowhere = "DATABASE_URL=postgres://postgres@127.0.0.1:1/postgres"
	tests := map[string]struct {
		run  string
		env  []string
		ok   bool
		says string
	}{
		"all is well":                      {"Database", nil, true, "PASS: TestInnerDatabase"},
		"a server of its own":              {"Database", []string{"DATABASE_URL=" + pgtest.Server(t).URL("postgres"), "CI=true"}, true, "PASS: TestInnerDatabase"},
		"a server that is away":            {"Database", []string{nowhere}, false, "DATABASE_URL: failed to connect"},
		"no URL":                           {"Database", []string{"DATABASE_URL=host=127.0.0.1"}, false, "DATABASE_URL is no URL"},
		"no server to start":               {"Database", []string{"PGBIN=/nowhere"}, false, "/nowhere"},
		"no PgBouncer":                     {"Bouncer", []string{"PGBOUNCER=/nowhere"}, true, "PGBOUNCER: "},
		"no PgBouncer, under CI":           {"Bouncer", []string{"PGBOUNCER=/nowhere", "CI=true"}, false, "PGBOUNCER: "},
		"no libfaketime":                   {"Clock", []string{"LIBFAKETIME=/nowhere"}, true, "LIBFAKETIME: "},
		"no libfaketime, under CI":         {"Clock", []string{"LIBFAKETIME=/nowhere", "CI=true"}, false, "LIBFAKETIME: "},
		"a goroutine left behind":          {"Leak", nil, false, "found unexpected goroutines"},
		"a connection kept":                {"Kept", nil, false, "1 connections were not given back"},
		"a template that cannot be filled": {"Template", nil, false, "no such thing"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^TestInner"+test.run+"$")
			cmd.Env = []string{"PGTEST_INNER=1"}
			for _, variable := range os.Environ() {
				if name, _, _ := strings.Cut(variable, "="); name != "CI" && name != "DATABASE_URL" {
					cmd.Env = append(cmd.Env, variable)
				}
			}
			cmd.Env = append(cmd.Env, test.env...)
			out, err := cmd.CombinedOutput()
			require.Equal(t, test.ok, err == nil, "%v\n%s", err, out)
			require.Contains(t, string(out), test.says)
		})
	}
}

func TestInnerDatabase(t *testing.T) {
	require.NoError(t, pgtest.Pool(t).Ping(t.Context()))
	url := pgtest.FromTemplate(t, "inner", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "create table made as select 1 as id")
		return err
	})
	_, err := pgtest.PoolOn(t, url).Exec(t.Context(), "insert into made values (2)")
	require.NoError(t, err)
}

func TestInnerBouncer(t *testing.T) {
	pgtest.Bouncer(t, pgtest.URL(t))
}

func TestInnerClock(t *testing.T) {
	if os.Getenv("LIBFAKETIME") != "" { // set to nowhere by TestMainFrom
		pgtest.ClockServer(t)
	}
}

// toFail is true for a test that TestMainFrom runs in a process of its own.
func toFail() bool { return os.Getenv("PGTEST_INNER") != "" }

func TestInnerLeak(t *testing.T) {
	if toFail() {
		go func() { select {} }()
	}
}

func TestInnerKept(t *testing.T) {
	if toFail() {
		_, err := pgtest.Pool(t).Acquire(t.Context())
		require.NoError(t, err)
	}
}

func TestInnerTemplate(t *testing.T) {
	if toFail() {
		pgtest.FromTemplate(t, "inner", func(context.Context, *pgx.Conn) error { return errors.New("no such thing") })
	}
}
