package pgserver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Not parallel: it changes PATH.
func TestInstalledBinDir(t *testing.T) {
	root := t.TempDir()
	program := func(path string) {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, nil, 0o755))
	}
	patterns := []string{filepath.Join(root, "lib/*/bin")}
	t.Setenv("PATH", filepath.Join(root, "path"))

	_, ok := installedBinDir(patterns)
	require.False(t, ok)

	for _, version := range []string{"9.6", "15", "16"} {
		program("lib/" + version + "/bin/initdb")
		program("lib/" + version + "/bin/postgres")
	}
	program("lib/17/bin/psql") // a client's package
	dir, ok := installedBinDir(patterns)
	require.True(t, ok)
	require.Equal(t, filepath.Join(root, "lib/16/bin"), dir, "the newest that is whole")

	program("cellar/initdb")
	program("cellar/postgres")
	require.NoError(t, os.Mkdir(filepath.Join(root, "path"), 0o755))
	require.NoError(t, os.Symlink(filepath.Join(root, "cellar/initdb"), filepath.Join(root, "path/initdb")))
	dir, ok = installedBinDir(patterns)
	require.True(t, ok)
	want, err := filepath.EvalSymlinks(filepath.Join(root, "cellar"))
	require.NoError(t, err)
	require.Equal(t, want, dir, "what PATH leads to comes first")
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for full, major := range map[string]int{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)": 15,
		"postgres (PostgreSQL) 17.5":                           17,
		"postgres (PostgreSQL) 9.6.24":                         9,
		"postgres (PostgreSQL) 19devel":                        19,
		"postgres (PostgreSQL) 18beta1":                        18,
	} {
		v, err := parseVersion(full)
		require.NoError(t, err)
		require.Equal(t, version{full, major}, v)
	}
	_, err := parseVersion("postgres: command not found")
	require.Error(t, err)
}
