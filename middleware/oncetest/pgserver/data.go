package pgserver

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
)

const superuser = "postgres"

// settings differ from PostgreSQL's own only where a server that lives for minutes gains by it.
const settings = `
max_connections = 200
log_min_messages = warning
log_line_prefix = '%m [%p] '
jit = off
# Shared memory of kind posix would be left behind in /dev/shm by kill -9.
dynamic_shared_memory_type = mmap
`

// maxBase keeps the path of the socket below the 103 bytes that macOS allows.
const maxBase = 60

// makeDir makes the directory that holds the server's data and its socket.
func (s *Server) makeDir(ctx context.Context) (string, error) {
	bases := []string{os.TempDir(), "/tmp", "/var/tmp"}
	if len(os.TempDir()) > maxBase {
		bases = bases[1:]
	}
	if !s.config.Fsync && os.TempDir() == "/tmp" && roomyMemory("/dev/shm") {
		bases = append([]string{"/dev/shm"}, bases...)
	}
	return s.account.TempDir(ctx, "pgserver-", bases...)
}

// initData fills the data directory: by initdb, or with a copy of what it made before, which is ten times as fast.
func (s *Server) initData(ctx context.Context) error {
	cached := s.initCache()
	if cached != "" && s.account.Owns(cached) {
		return s.account.Run(ctx, s.dir, "cp", "-R", cached, s.dataDir())
	}
	err := s.account.Run(ctx, s.dir, filepath.Join(s.binDir, "initdb"), "-D", s.dataDir(), "-U", superuser,
		"--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8", "--locale=C", "--wal-segsize=1", "--no-sync")
	if err != nil {
		return err
	}
	if err := s.account.WriteFile(filepath.Join(s.dataDir(), "postgresql.auto.conf"), settings); err != nil {
		return err
	}
	if cached != "" {
		// Kept for the next server if it can be; this one does not need it.
		_ = s.keepData(ctx, cached)
	}
	return nil
}

// initCache is where a fresh data directory is kept: one for each build of PostgreSQL, each account, and each text of settings.
func (s *Server) initCache() string {
	if s.config.CacheDir == "" {
		return ""
	}
	id := sha256.Sum256([]byte(s.version.full + "\x00" + s.binDir + "\x00" + settings))
	return filepath.Join(s.config.CacheDir, fmt.Sprintf("data-%d-%d-%x", s.version.major, s.account.UID, id[:8]))
}

// keepData copies the fresh data directory under another name first: other processes see it whole or not at all.
func (s *Server) keepData(ctx context.Context, cached string) error {
	if err := os.MkdirAll(s.config.CacheDir, 0o755); err != nil {
		return err
	}
	tmp, err := s.account.MakeDir(s.config.CacheDir, "data-tmp-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	fresh := filepath.Join(tmp, "data")
	if err := s.account.Run(ctx, s.dir, "cp", "-R", s.dataDir(), fresh); err != nil {
		return err
	}
	return os.Rename(fresh, cached)
}
