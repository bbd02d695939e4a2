package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
)

// Account is the user that a child runs as: the program's own, or for root another, since many servers refuse root.
type Account struct {
	Name     string // empty for the program's own
	UID, GID uint32
}

// FindAccount gives the program's own account, or for root the first of names that exists.
func FindAccount(names ...string) (*Account, error) {
	if !Supported {
		return nil, fmt.Errorf("start a server as a child: %w on %s", errors.ErrUnsupported, runtime.GOOS)
	}
	if os.Geteuid() != 0 {
		return &Account{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, nil
	}
	for _, name := range names {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(found.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(found.Gid, 10, 32)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return &Account{Name: name, UID: uint32(uid), GID: uint32(gid)}, nil
		}
	}
	return nil, fmt.Errorf("the server refuses to run as root, and there is no other account named %q", names)
}

// TempDir makes a directory that the account alone can enter, in the first of bases where it can be reached.
func (a *Account) TempDir(ctx context.Context, prefix string, bases ...string) (string, error) {
	var faults []error
	for _, base := range bases {
		dir, err := a.MakeDir(base, prefix)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		// A directory above may be closed to another account.
		if err := a.Run(ctx, "/", "ls", dir); err != nil {
			faults = append(faults, err, os.Remove(dir))
			continue
		}
		return dir, nil
	}
	return "", errors.Join(faults...)
}

// MakeDir makes a directory of the account's below base, as os.MkdirTemp does.
func (a *Account) MakeDir(base, prefix string) (string, error) {
	dir, err := os.MkdirTemp(base, prefix)
	if err != nil || a.own() {
		return dir, err
	}
	if err := a.Give(dir); err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	return dir, nil
}

// WriteFile makes a file that the account alone can read.
func (a *Account) WriteFile(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return a.Give(path)
}

// Give makes the account the owner of path.
func (a *Account) Give(path string) error {
	if a.own() {
		return nil
	}
	return os.Chown(path, int(a.UID), int(a.GID))
}

// Run runs a program as the account, to its end.
func (a *Account) Run(ctx context.Context, dir, path string, args ...string) error {
	cmd := exec.CommandContext(ctx, path, args...)
	a.become(cmd)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", path, a.explain(err), out)
	}
	return nil
}

func (a *Account) own() bool { return a.Name == "" }

// environment is what a program needs to find its libraries, and no more: neither the settings of clients (PGPORT and the
// like) nor what may be secret in the environment of root.
func environment() []string {
	env := []string{"LC_ALL=C", "TZ=UTC", "HOME=/"}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func (a *Account) explain(err error) error {
	if !a.own() && errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w (the program runs as root, this child as %s)", err, a.Name)
	}
	return err
}
