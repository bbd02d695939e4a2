package oncetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

// databases are those of a proof's runs. The next one is made, and the last one dropped, while a run is going on: each takes as long
// as a run.
type databases struct {
	t        testing.TB
	server   *pgserver.Server
	template string
	own      bool      // the template goes with the proof
	next     chan made // gets one
	drops    sync.WaitGroup
}

type made struct {
	name string
	err  error
}

func (d *databases) make() {
	next := make(chan made, 1)
	d.next = next
	ctx := context.WithoutCancel(d.t.Context())
	go func() {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		name, err := d.server.NewDatabase(ctx, d.template)
		next <- made{name, err}
	}()
}

func (d *databases) take() string {
	d.t.Helper()
	m := <-d.next
	d.make()
	check(d.t, m.err)
	return m.name
}

func (d *databases) drop(name string) {
	d.drops.Wait() // one at a time
	d.drops.Go(func() { dropDatabase(d.t, d.server, name) })
}

func (d *databases) close() {
	if m := <-d.next; m.err == nil {
		d.drop(m.name)
	}
	d.drops.Wait()
	if d.own {
		dropDatabase(d.t, d.server, d.template)
	}
}
