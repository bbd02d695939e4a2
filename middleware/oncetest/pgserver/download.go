package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// downloadVersion is the version that is downloaded where the machine has none.
const downloadVersion = embeddedpostgres.V17

// downloading holds one token: several servers that start at once in a program need one download.
var downloading = make(chan struct{}, 1)

// download gives the directory of the binaries kept in the cache, and fetches them first where they are not there yet.
func download(ctx context.Context, config Config) (binDir string, err error) {
	if config.CacheDir == "" {
		return "", errors.New("no PostgreSQL found on this machine, and no cache directory to download it into: set CacheDir, or BinDir")
	}
	kept := filepath.Join(config.CacheDir, "postgresql-"+string(downloadVersion))
	binDir = filepath.Join(kept, "bin")
	select {
	case downloading <- struct{}{}:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if checkBinDir(binDir) == nil {
		<-downloading
		return binDir, nil
	}
	source := config.Repository
	if source == "" {
		source = "Maven Central"
	}
	_, _ = fmt.Fprintf(config.Notices, "pgserver: no PostgreSQL found on this machine; downloading %s from %s into %s\n",
		downloadVersion, source, config.CacheDir)

	// The library knows no context. Where ours ends first, the download goes on behind, and cleans up after itself.
	done := make(chan error, 1)
	go func() {
		defer func() { <-downloading }()
		done <- fetch(config, kept)
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return "", fmt.Errorf("download PostgreSQL (or install it, or name its directory in BinDir): %w", err)
	}
	return binDir, nil
}

// fetch downloads beside kept and moves the result there, so that it is there whole or not at all. Its modes let another account
// run what it has fetched.
func fetch(from Config, kept string) (err error) {
	if err := os.MkdirAll(from.CacheDir, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(from.CacheDir, "download-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	unpacked := filepath.Join(tmp, "postgresql")
	config := embeddedpostgres.DefaultConfig().
		Version(downloadVersion).
		Port(0).
		Logger(io.Discard).
		CachePath(filepath.Join(tmp, "archive")).
		BinariesPath(unpacked).
		// The library has no call that downloads and does no more, and what it does next, it cannot do as root. A
		// directory that cannot be made, since a part of its path turns out to be a program, ends its Start right after
		// the unpacking. So what counts is what was unpacked, not the error.
		RuntimePath(filepath.Join(unpacked, "bin", "initdb", "none"))
	if from.Repository != "" {
		config = config.BinaryRepositoryURL(from.Repository)
	}
	// It downloads by the default client, whose idle connections would pass for goroutines that a test has left behind.
	defer http.DefaultClient.CloseIdleConnections()
	failure := embeddedpostgres.NewDatabase(config).Start()
	if err := checkBinDir(filepath.Join(unpacked, "bin")); err != nil {
		return errors.Join(failure, err)
	}
	err = os.Rename(unpacked, kept)
	if err != nil && checkBinDir(filepath.Join(kept, "bin")) == nil {
		return nil // another process was quicker
	}
	return err
}
