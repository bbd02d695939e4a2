package pathtest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// childConfig is the environment variable that makes this program a service in a process of its own.
const childConfig = "PATHTEST_CHILD"

// reached is the line that a child writes when it stands at its crash point.
const reached = "reached"

// childMain runs a service until it is killed, or its parent has ended.
func childMain(config string) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // which the parent holds open
		os.Exit(1)
	}()
	var s service
	if err := json.Unmarshal([]byte(config), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var passed atomic.Int64
	s.atCrash = func() {
		if passed.Add(1) > int64(s.Crash.After) {
			fmt.Println(reached)
			select {} // whoever else gets here stays too
		}
	}
	if err := s.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// process is a service in a process of its own.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string
}

func startChild(t *testing.T, s service) *process {
	t.Helper()
	config, err := json.Marshal(s)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childConfig+"="+string(config))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	p := &process{cmd: cmd, stdin: stdin, lines: make(chan string, 100)}
	go func() {
		defer close(p.lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
	}()
	t.Cleanup(p.kill)
	return p
}

// waitReached waits until the process stands at its crash point.
func (p *process) waitReached(t *testing.T) {
	t.Helper()
	select {
	case line := <-p.lines:
		require.Equal(t, reached, line)
	case <-time.After(Longest):
		require.Fail(t, "the child did not get to its crash point")
	}
}

// kill is kill -9. It returns when the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	for range p.lines { // until its end is closed
	}
	_ = p.cmd.Wait()
	_ = p.stdin.Close()
}
