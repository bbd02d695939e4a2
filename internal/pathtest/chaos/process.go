package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/watermill-once/watermill-once/internal/child"
	"github.com/watermill-once/watermill-once/internal/tcpproxy"
)

// process is one of the processes under test, under a supervisor that starts it again whenever it has ended.
type process struct {
	role  role
	proxy *tcpproxy.Proxy // between it and PostgreSQL; nil for the broker

	// busy is held while a fault is on it: one at a time.
	busy sync.Mutex

	mu      sync.Mutex
	running *child.Process
	gate    chan struct{} // closed while it may start
	ends    int           // of its own accord
}

func newProcess(r role, proxy *tcpproxy.Proxy) *process {
	p := &process{role: r, proxy: proxy, gate: make(chan struct{})}
	close(p.gate)
	return p
}

// supervise keeps the process running until ctx ends, and then kills it. What it says goes to a file in logs.
func (p *process) supervise(ctx context.Context, logs string) error {
	log, err := os.OpenFile(filepath.Join(logs, p.role.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	config, err := json.Marshal(p.role)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		p.mu.Lock()
		gate := p.gate
		p.mu.Unlock()
		select {
		case <-gate:
		case <-ctx.Done():
			return nil
		}
		running, err := p.start(log, program, string(config))
		if err != nil {
			return fmt.Errorf("start %s: %w", p.role.Name, err)
		}
		if running == nil {
			continue // the gate was closed meanwhile
		}
		select {
		case <-running.Done():
			pause(ctx, 100*time.Millisecond)
		case <-ctx.Done():
			return running.End(syscall.SIGKILL, time.Minute)
		}
	}
	return nil
}

func (p *process) start(log *os.File, program, config string) (*child.Process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
	default:
		return nil, nil
	}
	if p.running != nil {
		p.ends++
	}
	running, err := new(child.Account).Start("/", log, program, childArgument, config)
	p.running = running
	return running, err
}

// kill is kill -9. The process stays down until up is called.
func (p *process) kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gate = make(chan struct{})
	if p.running == nil {
		return nil
	}
	err := p.running.End(syscall.SIGKILL, time.Minute)
	p.running = nil
	return err
}

// up lets a killed process start again.
func (p *process) up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.gate)
}

// freeze stops the process, where it stands, for a while.
func (p *process) freeze(ctx context.Context, d time.Duration) error {
	if err := p.send(freezeProcess); err != nil {
		return err
	}
	pause(ctx, d)
	return p.send(thawProcess)
}

// send sends a signal to the process if that is running.
func (p *process) send(signal func(pid int) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return nil
	}
	select {
	case <-p.running.Done():
		return nil
	default:
		return signal(p.running.PID())
	}
}

func (p *process) ended() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ends
}

// pause waits, and tells whether ctx has left it the time.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
