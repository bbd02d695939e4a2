package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// childVariable is what makes this program the service and not the one that kills it.
const childVariable = "KILL_IT_SERVICE"

// serveAsChild runs the service, in the process that is made for it. False in any other.
func serveAsChild() bool {
	text := os.Getenv(childVariable)
	if text == "" {
		return false
	}
	var s service
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		signal.Ignore(os.Interrupt) // which a terminal sends to both: the parent ends us
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // whose other end the parent has: it is gone
			stop()
		}()
		if err = s.run(ctx); ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = nil // it was asked to end before it had begun
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "service:", err)
		os.Exit(1)
	}
	return true
}

// child is the service in a process of its own.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan error // has what Wait has returned
}

func start(s service) (*child, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, stdin: stdin, ended: make(chan error, 1)}
	go func() { c.ended <- cmd.Wait() }()
	return c, nil
}

// waitKilled returns when the process has died of kill -9, and with an error where it has ended otherwise, or does not.
func (c *child) waitKilled(ctx context.Context) error {
	select {
	case err := <-c.ended:
		if status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signal() == syscall.SIGKILL {
			return nil
		}
		return fmt.Errorf("the service was to be killed, and ended otherwise: %v", err)
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("the service did not get to its crash point: %w", context.Cause(ctx)), c.stop())
	}
}

// stop has the service end in order.
func (c *child) stop() error {
	_ = c.stdin.Close() // fails where it has ended already, which Wait tells
	if err := <-c.ended; err != nil {
		return fmt.Errorf("service: %w", err)
	}
	return nil
}
