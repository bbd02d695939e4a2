//go:build unix

package pgserver

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNewDatabase(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	template, err := s.NewDatabase(t.Context(), "")
	require.NoError(t, err)
	query(t, s.URL(template), "create table made as select 'a'::text as a; select 1")

	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			name, err := s.NewDatabase(t.Context(), template)
			if err != nil {
				t.Error(err)
				return
			}
			if got := query(t, s.URL(name), "insert into made values ('b'); select count(*) from made"); got != "2" {
				t.Errorf("%s rows in the copy", got)
			}
		})
	}
	running.Wait()

	name, err := s.NewDatabase(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, "0", query(t, s.URL(name), "select count(*) from pg_class where relname = 'made'"))
	require.NoError(t, s.DropDatabase(t.Context(), name))
	require.Equal(t, "0", query(t, s.URL("postgres"), "select count(*) from pg_database where datname = '"+name+"'"))

	_, err = s.NewDatabase(t.Context(), `no"such`)
	require.ErrorContains(t, err, "3D000")
}
