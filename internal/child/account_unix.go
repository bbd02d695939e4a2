//go:build unix

package child

import (
	"os"
	"os/exec"
	"syscall"
)

// Supported tells whether children can be run on this operating system.
const Supported = true

// become makes the program run as the account, in a process group of its own: a Ctrl-C at the terminal is for the parent, which
// then ends its children in their turn.
func (a *Account) become(cmd *exec.Cmd) {
	cmd.Env = environment()
	detach(cmd)
	if !a.own() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.UID, Gid: a.GID}
	}
}

func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// Owns tells whether path is a directory of the account's that no other user can write to.
func (a *Account) Owns(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o022 != 0 {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid == a.UID
}
