package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// Guard is a shell that outlives the program, whether that returns, panics or is killed: it reads from a pipe whose other end only
// the program holds. When that closes, it ends the child and removes its directory.
type Guard struct {
	dir  string
	pipe *os.File
	cmd  *exec.Cmd
}

// Each line is the id of the process to end, or 0 when there is none. One that has ended can stay as a zombie for as long as
// whoever inherited it likes, and a directory in which processes are still at work can take a few tries.
const guardScript = `
trap '' INT TERM HUP QUIT
running() { kill -0 "$1" 2>/dev/null && ! grep -q ') Z ' "/proc/$1/stat" 2>/dev/null; }
pid=0
while read -r line; do pid=$line; done
cd "$1" || exit
if test "$pid" -gt 0 && kill -QUIT "$pid" 2>/dev/null; then
	tries=0
	while running "$pid" && test $((tries += 1)) -le 100; do sleep 0.05; done
	kill -KILL "$pid" 2>/dev/null
fi
(eval "$2")
cd /
tries=0
until rm -rf "$1" 2>/dev/null || test $((tries += 1)) -gt 100; do sleep 0.1; done
`

// NewGuard starts a guard over dir. Before dir is removed, the guard runs last in it, a piece of shell that may be empty.
func NewGuard(dir, last string) (*Guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	cmd := exec.Command("/bin/sh", "-c", guardScript, "guard", dir, last)
	detach(cmd)
	cmd.Stdin, cmd.Dir = r, "/"
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("guard: %w", err), w.Close())
	}
	return &Guard{dir: dir, pipe: w, cmd: cmd}, nil
}

// Watch tells the guard which process to end; nil: none.
func (g *Guard) Watch(p *Process) error {
	pid := 0
	if p != nil {
		pid = p.PID()
	}
	_, err := fmt.Fprintln(g.pipe, pid)
	return err
}

// PID is the guard's own process id.
func (g *Guard) PID() int { return g.cmd.Process.Pid }

// Close has the guard do its work and waits for it. Where somebody has killed the guard, it removes the directory itself.
func (g *Guard) Close() error {
	err := g.pipe.Close()
	_ = g.cmd.Wait()
	return errors.Join(err, os.RemoveAll(g.dir))
}
