package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watermill-once/watermill-once/internal/tcpproxy"
)

// execute does all of the plan that can be done, each fault at its time or, where the one before it on the same target lasts
// longer, right after that. It returns when the last one is over: everything runs again, or is being started.
func (w *world) execute(ctx context.Context, plan []fault) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	start := time.Now()
	for _, f := range plan {
		if _, unable := w.unable()[f.Kind]; unable {
			continue
		}
		if !pause(ctx, f.At-time.Since(start)) {
			break
		}
		running.Go(func() {
			if err := w.do(ctx, f); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s %s: %w", f.Kind, f.Target, err))
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

// unable tells which faults cannot be done here, and why.
func (w *world) unable() map[kind]string {
	unable := maps.Clone(w.database.unable)
	if w.broker.process == nil {
		unable[crashBroker] = "the broker is the caller's"
	}
	return unable
}

func (w *world) do(ctx context.Context, f fault) error {
	switch f.Kind {
	case kill, freeze, cut, loseCommit, slowCommit:
		return w.disturb(ctx, w.processes[f.Target], f)
	case crashBroker:
		return w.disturb(ctx, w.broker.process, f)
	case crashDatabase, fillDisk, jumpClock:
		return w.disturbDatabase(ctx, f)
	case rewind:
		return w.rewind(ctx, f)
	default:
		return w.forge(ctx, f)
	}
}

// done notes a fault and counts it.
func (w *world) done(f fault) {
	w.ledger.note(faulted, "", "%s %s for %v, n %d", f.Kind, f.Target, f.For, f.N)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count[f.Kind]++
}

// disturb does something to one process.
func (w *world) disturb(ctx context.Context, p *process, f fault) error {
	p.busy.Lock()
	defer p.busy.Unlock()
	w.done(f)
	switch f.Kind {
	case kill, crashBroker:
		defer p.up()
		if err := p.kill(); err != nil {
			return err
		}
		pause(ctx, f.For)
	case freeze:
		return p.freeze(ctx, f.For)
	case cut:
		p.proxy.Cut()
	case loseCommit:
		var lost atomic.Int64
		p.proxy.OnData(onCommit(func() bool { return lost.Add(1) > int64(f.N) }))
		pause(ctx, f.For)
		p.proxy.OnData(nil)
	case slowCommit:
		var slowed atomic.Int64
		p.proxy.OnData(onCommit(func() bool {
			if slowed.Add(1) <= int64(f.N) {
				time.Sleep(f.For)
			}
			return true
		}))
		pause(ctx, 3*time.Second)
		p.proxy.OnData(nil)
	}
	return nil
}

func (w *world) disturbDatabase(ctx context.Context, f fault) error {
	d := w.database
	d.busy.Lock()
	defer d.busy.Unlock()
	w.done(f)
	switch f.Kind {
	case crashDatabase:
		return d.crash(ctx, f.For)
	case fillDisk:
		if err := d.disk.fill(); err != nil {
			return err
		}
		pause(ctx, f.For)
		return d.disk.free()
	default:
		return d.clock.jump(f.For)
	}
}

// onCommit calls f for each answer of PostgreSQL that says COMMIT: by then it is done, and the client does not know.
func onCommit(f func() (pass bool)) func(tcpproxy.Direction, []byte) bool {
	return func(direction tcpproxy.Direction, piece []byte) bool {
		return direction != tcpproxy.FromServer || !bytes.Contains(piece, []byte("COMMIT\x00")) || f()
	}
}

// rewind kills the processes of a group and sets it back.
func (w *world) rewind(ctx context.Context, f fault) error {
	for _, name := range processNames {
		if strings.HasPrefix(name, f.Target+"-") {
			p := w.processes[name]
			p.busy.Lock()
			defer p.busy.Unlock()
			defer p.up()
			w.done(fault{Kind: kill, Target: name})
			if err := p.kill(); err != nil {
				return err
			}
		}
	}
	for _, c := range consumers {
		if c.Name == f.Target {
			w.done(f)
			return w.broker.rewind(ctx, c.Name, c.Topic, f.N)
		}
	}
	return fmt.Errorf("there is no group %q", f.Target)
}

// forge writes records of its own making, made of those that a topic has.
func (w *world) forge(ctx context.Context, f fault) error {
	topic := topicEvents
	if f.Target != "" {
		topic = f.Target
	}
	w.done(f)
	return patiently(ctx, func(ctx context.Context) error {
		records, err := w.broker.sample(ctx, topic, f.N, f.Draw)
		if err != nil {
			return err
		}
		switch f.Kind {
		case repeatRecords:
			records = copies(records)
		case lateEvents:
			records, err = late(records)
		case badEvents:
			records = bad(records)
		}
		if err != nil {
			return err
		}
		return w.broker.forge(ctx, w.ledger, records)
	})
}
