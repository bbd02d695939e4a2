package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/watermill-once/watermill-once/internal/child"
)

// fakeClock is the clock of a server started from binDir.
type fakeClock struct{ binDir, file string }

// newFakeClock puts scripts before the binaries, which preload libfaketime. Both are looked for where Debian has them.
func newFakeClock(account *child.Account, dir string) (*fakeClock, error) {
	library, err := newest("/usr/lib/*/faketime/libfaketime.so.1")
	if err != nil {
		return nil, err
	}
	server, err := newest("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return nil, err
	}
	c := &fakeClock{binDir: filepath.Join(dir, "bin"), file: filepath.Join(dir, "clock")}
	if err := os.Mkdir(c.binDir, 0o755); err != nil {
		return nil, err
	}
	for _, name := range []string{"initdb", "postgres"} {
		script := fmt.Sprintf(preload, library, c.file, filepath.Join(filepath.Dir(server), name))
		if err := os.WriteFile(filepath.Join(c.binDir, name), []byte(script), 0o755); err != nil {
			return nil, err
		}
	}
	return c, errors.Join(account.WriteFile(c.file, "+0"), account.Give(c.binDir))
}

// Only the time of day is set: waits go by the monotonic clock. Without a cache, all backends have the new time at once.
const preload = `#!/bin/sh
export LD_PRELOAD=%s FAKETIME_TIMESTAMP_FILE=%s FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1
exec %s "$@"
`

func newest(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("there is no %s", pattern)
	}
	if err != nil {
		return "", err
	}
	return found[len(found)-1], nil
}

// jump sets the clock to so much before or after the machine's.
func (c *fakeClock) jump(by time.Duration) error {
	file, err := os.OpenFile(c.file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	// One write of always the same length: a reader sees the old time or the new one.
	_, err = fmt.Fprintf(file, "%+010.3f\n", by.Seconds())
	return errors.Join(err, file.Close())
}
