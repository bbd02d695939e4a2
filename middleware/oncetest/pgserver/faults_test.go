//go:build unix

package pgserver

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// What clients are told, and that all that was committed is there after a restart, at the same address.
func TestFaults(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		fault    func(*Server) error
		sqlstate string // empty: no error of the server's, only the connection's
	}{
		"Stop":    {(*Server).Stop, "57P01"},
		"Abort":   {(*Server).Abort, ""},
		"Kill":    {(*Server).Kill, ""},
		"Restart": {func(s *Server) error { return s.Restart(t.Context()) }, "57P01"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, Config{})
			before := s.URL("postgres")
			query(t, before, "create table made (id int); select 1")
			conn, err := pgx.Connect(t.Context(), before)
			require.NoError(t, err)
			_, err = conn.Exec(t.Context(), "insert into made values (1)")
			require.NoError(t, err)
			ended := make(chan error)
			go func() {
				_, err := conn.Exec(t.Context(), "insert into made select 2 from pg_sleep(60)")
				ended <- err
			}()
			waitFor(t, before, "select count(*) = 1 from pg_stat_activity where query like 'insert % pg_sleep%' and state = 'active'")

			require.NoError(t, test.fault(s))
			err = <-ended
			var told *pgconn.PgError
			if test.sqlstate == "" {
				require.Error(t, err)
				require.NotErrorAs(t, err, &told)
			} else {
				require.ErrorAs(t, err, &told)
				require.Equal(t, test.sqlstate, told.Code)
			}
			require.NoError(t, conn.Close(t.Context()))

			require.NoError(t, s.Restart(t.Context()))
			require.Equal(t, before, s.URL("postgres"))
			require.Equal(t, "1", query(t, before, "select count(*) from made"))
		})
	}
}

// Under fire: what was acknowledged before a kill -9 is there after it, and nothing else but perhaps the row in flight.
func TestKillKeepsWhatWasCommitted(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	query(t, s.URL("postgres"), "create table made (id bigint primary key); select 1")
	next := 1
	for range 5 {
		first := next
		fired, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
			if err != nil {
				t.Error(err)
				return
			}
			for {
				if _, err := conn.Exec(t.Context(), "insert into made values ($1)", next); err != nil {
					return
				}
				next++
				if next == first+200 {
					close(fired)
				}
			}
		}()
		<-fired
		require.NoError(t, s.Kill())
		<-ended
		require.NoError(t, s.Restart(t.Context()))
		acknowledged := query(t, s.URL("postgres"), "select count(*) from made where id < "+itoa(next))
		require.Equal(t, itoa(next-1), acknowledged)
		require.Equal(t, "0", query(t, s.URL("postgres"), "select count(*) from made where id > "+itoa(next)))
		query(t, s.URL("postgres"), "delete from made where id = "+itoa(next)+"; select 1")
	}
}

func TestNoSharedMemoryIsLeft(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*Server) error{
		"Close": func(*Server) error { return nil },
		"Stop":  (*Server).Stop,
		"Abort": (*Server).Abort,
		"Kill":  (*Server).Kill,
		"twice": func(s *Server) error {
			require.NoError(t, s.Kill())
			require.NoError(t, s.Restart(t.Context()))
			return s.Kill()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, Config{})
			id := sharedMemory(t, s)
			require.True(t, sharedMemoryExists(t, id))
			maps, err := os.ReadFile("/proc/" + itoa(s.process.PID()) + "/maps")
			if err == nil {
				require.NotContains(t, string(maps), "/dev/shm/PostgreSQL.", "these outlive a kill -9")
			}
			require.NoError(t, fault(s))
			require.NoError(t, s.Close())
			require.False(t, sharedMemoryExists(t, id))
		})
	}
}

// sharedMemory is the id of the server's segment.
func sharedMemory(t testing.TB, s *Server) string {
	t.Helper()
	file, err := os.ReadFile(s.dataDir() + "/postmaster.pid")
	require.NoError(t, err)
	return strings.Fields(strings.Split(string(file), "\n")[6])[1]
}

func sharedMemoryExists(t testing.TB, id string) bool {
	t.Helper()
	out, err := exec.Command("ipcs", "-m").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		// The id is the second column, on Linux and macOS; one to be destroyed has gone for our purpose.
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == id {
			return !strings.Contains(line, "dest")
		}
	}
	return false
}
