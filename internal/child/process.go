package child

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// Process is a running child.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// Start runs a program as the account in dir; log gets what it writes to its standard output and error.
func (a *Account) Start(dir string, log io.Writer, path string, args ...string) (*Process, error) {
	cmd := exec.Command(path, args...)
	a.become(cmd)
	dieWithParent(cmd)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	// The child's own children may hold the log open after it has been killed.
	cmd.WaitDelay = time.Second

	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(p.done)
		// The kernel takes the end of this thread for the end of the parent, so keep it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, a.explain(err)
	}
	return p, nil
}

// PID is the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// End sends the signal and waits until the child has ended; one that takes longer than patience is killed, with an error.
func (p *Process) End(signal os.Signal, patience time.Duration) error {
	_ = p.cmd.Process.Signal(signal) // fails only where the child has ended by itself
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	return fmt.Errorf("%s did not heed the signal %v within %v and was killed", p.cmd.Path, signal, patience)
}
