package pgserver

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// packaged are the places where packages put the binaries of each version.
var packaged = []string{
	"/usr/lib/postgresql/*/bin",         // Debian, Ubuntu
	"/usr/lib/postgresql*/bin",          // SUSE
	"/usr/pgsql-*/bin",                  // PGDG's RPMs
	"/usr/libexec/postgresql*",          // Alpine
	"/opt/homebrew/opt/postgresql*/bin", // Homebrew on Apple silicon
	"/usr/local/opt/postgresql*/bin",    // Homebrew on Intel
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/Library/PostgreSQL/*/bin", // EDB's installer
	"/usr/local/pgsql/bin",      // from source
}

func findBinDir(ctx context.Context, config Config) (string, error) {
	if config.BinDir != "" {
		return config.BinDir, nil
	}
	if dir, ok := installedBinDir(packaged); ok {
		return dir, nil
	}
	return download(ctx, config)
}

func installedBinDir(patterns []string) (string, bool) {
	var dirs []string
	for _, pattern := range patterns {
		found, _ := filepath.Glob(pattern)
		dirs = append(dirs, found...)
	}
	slices.SortStableFunc(dirs, func(a, b string) int { return cmp.Compare(versionInPath(b), versionInPath(a)) })
	if initdb, err := exec.LookPath("initdb"); err == nil {
		// The link that PATH leads to may stand apart from postgres.
		if initdb, err = filepath.EvalSymlinks(initdb); err == nil {
			dirs = append([]string{filepath.Dir(initdb)}, dirs...)
		}
	}
	for _, dir := range dirs {
		if checkBinDir(dir) == nil {
			return dir, true
		}
	}
	return "", false
}

// checkBinDir wants both binaries: client packages have a directory too, without the server in it.
func checkBinDir(dir string) error {
	for _, name := range []string{"initdb", "postgres"} {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("BinDir: %w", err)
		}
		if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			return fmt.Errorf("BinDir: %s is not a program", path)
		}
	}
	return nil
}

// versionInPath is the last number in a path; 9.6 is one.
func versionInPath(path string) float64 {
	numbers := strings.FieldsFunc(path, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	for _, number := range slices.Backward(numbers) {
		if v, err := strconv.ParseFloat(number, 64); err == nil {
			return v
		}
	}
	return 0
}

// version is what postgres --version says.
type version struct {
	full  string // "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"
	major int
}

func readVersion(ctx context.Context, binDir string) (version, error) {
	postgres := filepath.Join(binDir, "postgres")
	out, err := exec.CommandContext(ctx, postgres, "--version").Output()
	if err != nil {
		return version{}, fmt.Errorf("%s --version: %w", postgres, err)
	}
	return parseVersion(strings.TrimSpace(string(out)))
}

func parseVersion(full string) (version, error) {
	_, number, _ := strings.Cut(full, "(PostgreSQL) ")
	end := strings.IndexFunc(number, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(number)
	}
	major, err := strconv.Atoi(number[:end])
	if err != nil {
		return version{}, fmt.Errorf("no version in %q", full)
	}
	return version{full: full, major: major}, nil
}
