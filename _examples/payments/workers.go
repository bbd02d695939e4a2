package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// workers keeps some processes of this program running, as an orchestrator does: one that is killed is started again.
type workers struct {
	count    int
	settings settings

	mu      sync.Mutex
	running map[string]*process
}

// process is one worker. What it is to do stands at the beginning of its standard input; when that is closed, because the parent
// says so or is no more, the worker ends.
type process struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	killed bool
}

// run ends when the context does or a worker fails, and when all of them have ended.
func (w *workers) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range w.count {
		group.Go(func() error {
			name := fmt.Sprintf("worker-%d", i+1)
			for ctx.Err() == nil {
				if err := w.runOne(ctx, name); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// kill is a power cut for one worker, as far as that can be had: kill -9.
func (w *workers) kill(name string) {
	w.mu.Lock()
	p := w.running[name]
	if p != nil {
		p.killed = true
	}
	w.mu.Unlock()
	if p != nil {
		_ = p.cmd.Process.Kill() // fails only where it has ended
		<-p.ended
	}
}

// patience is how long a worker may take to finish what it has begun.
const patience = 25 * time.Second

// runOne returns nil where the worker was killed, or has ended with the context.
func (w *workers) runOne(ctx context.Context, name string) error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	p := &process{cmd: exec.Command(path), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+name)
	p.cmd.Stderr = os.Stderr
	input, err := p.cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return errors.Join(err, input.Close())
	}
	w.mu.Lock()
	w.running[name] = p
	w.mu.Unlock()

	told := json.NewEncoder(input).Encode(w.settings)
	end := context.AfterFunc(ctx, func() {
		_ = input.Close()
		select {
		case <-p.ended:
		case <-time.After(patience):
			_ = p.cmd.Process.Kill()
		}
	})
	defer end()
	err = p.cmd.Wait()
	close(p.ended)

	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case p.killed:
		return nil
	case err == nil && ctx.Err() == nil:
		return errors.New("it has ended by itself")
	default:
		return errors.Join(err, told)
	}
}
