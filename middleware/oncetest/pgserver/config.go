package pgserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Config is how a server is started. The zero value works.
type Config struct {
	// BinDir is the directory of the binaries initdb and postgres. Set it to choose among several versions. Defaults to the
	// directory of the initdb on PATH, else to the newest version in the places where packages put them, else to a download.
	BinDir string

	// Repository is the base URL of the Maven repository to download from, where there are no binaries. Defaults to Maven
	// Central.
	Repository string

	// CacheDir keeps what the next Start can use again: downloaded binaries, and the result of initdb. Defaults to
	// watermill-once in the user's cache directory; for root, in /var/cache, since the account that the server runs as has to
	// get at it.
	CacheDir string

	// User is the account to run the server as when the program runs as root; otherwise it is not looked at. Defaults to
	// postgres where there is one, else to nobody.
	User string

	// Params are server settings, as in postgresql.conf: {"max_connections": "500"}. The addresses and fsync are not to be set
	// here.
	Params map[string]string

	// Fsync makes commits survive the death of the machine, as in production: slower, and true to life in a benchmark.
	Fsync bool

	// Log gets what the server writes to its log. Its last part is in the error of a failed start in any case. Defaults to
	// nowhere.
	Log io.Writer

	// Notices gets a line when something takes long, which only a download does. Defaults to standard error.
	Notices io.Writer
}

func (c *Config) setDefaults() {
	if c.CacheDir == "" {
		c.CacheDir = defaultCacheDir()
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
	if c.Notices == nil {
		c.Notices = os.Stderr
	}
}

// defaultCacheDir is empty where the user has none.
func defaultCacheDir() string {
	if os.Geteuid() == 0 {
		return "/var/cache/watermill-once"
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "watermill-once")
}

// accounts are those that the server may run as in place of root.
func (c *Config) accounts() []string {
	if c.User != "" {
		return []string{c.User}
	}
	return []string{"postgres", "nobody"}
}

// reserved are the settings that the package sets itself.
var reserved = []string{"data_directory", "fsync", "listen_addresses", "port", "unix_socket_directories"}

// Validate reports all that is wrong with the configuration.
func (c Config) Validate() error {
	var faults []error
	if c.BinDir != "" {
		faults = append(faults, checkBinDir(c.BinDir))
	}
	if c.CacheDir != "" && !filepath.IsAbs(c.CacheDir) {
		faults = append(faults, fmt.Errorf("CacheDir %q is not an absolute path", c.CacheDir))
	}
	for name := range c.Params {
		if slices.Contains(reserved, name) {
			faults = append(faults, fmt.Errorf("setting %s in Params: it is the package's own", name))
		}
	}
	return errors.Join(faults...)
}
