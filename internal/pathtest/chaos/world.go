package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/watermill-once/watermill-once/internal/child"
	"github.com/watermill-once/watermill-once/internal/tcpproxy"
)

// world is the system under test, and what is around it.
type world struct {
	settings  settings
	dir       string // of ledgers and logs
	ledger    *ledger
	database  *database
	broker    *broker
	processes map[string]*process

	supervisors *errgroup.Group
	endAll      context.CancelFunc

	mu    sync.Mutex
	count map[kind]int // faults done
}

// processNames are those that faults are aimed at.
var processNames = []string{
	"producer-1", "producer-2",
	"totals-1", "totals-2", "state-1", "state-2", "downstream-1", "downstream-2",
	"relay-1", "relay-2", "relay-3",
}

func aims() targets {
	t := targets{processes: processNames, topics: []string{topicEvents, topicOut}}
	for _, c := range consumers {
		t.groups = append(t.groups, c.Name)
	}
	return t
}

func startWorld(ctx context.Context, s settings) (_ *world, err error) {
	w := &world{settings: s, dir: s.dir, processes: map[string]*process{}, count: map[kind]int{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.dir == "" {
		if w.dir, err = os.MkdirTemp("", "chaos-ledger-"); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(os.Mkdir(w.ledgers(), 0o755), os.Mkdir(w.logs(), 0o755)); err != nil {
		return nil, err
	}
	if w.ledger, err = openLedger(w.ledgers(), "rig"); err != nil {
		return nil, err
	}
	if w.database, err = startDatabase(ctx); err != nil {
		return nil, err
	}

	running, endAll := context.WithCancel(context.Background())
	w.endAll = endAll
	w.supervisors, running = errgroup.WithContext(running)
	if err := w.startBroker(ctx, running); err != nil {
		return nil, err
	}
	for _, name := range processNames {
		if err := w.startProcess(running, name); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *world) ledgers() string { return filepath.Join(w.dir, "ledger") }
func (w *world) logs() string    { return filepath.Join(w.dir, "log") }

// startBroker starts an embedded Kafka in a process of its own, or takes the one that is given, and makes the topics.
func (w *world) startBroker(ctx, running context.Context) (err error) {
	if w.settings.broker != "" {
		prefix := fmt.Sprintf("chaos-%d-", os.Getpid())
		if w.broker, err = newBroker([]string{w.settings.broker}, prefix, nil); err != nil {
			return err
		}
		return w.broker.createTopics(ctx)
	}
	port, err := child.FreePort()
	if err != nil {
		return err
	}
	p := newProcess(role{Name: brokerName, Port: port, DataDir: filepath.Join(w.dir, brokerName)}, nil)
	w.supervisors.Go(func() error { return p.supervise(running, w.logs()) })
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if w.broker, err = newBroker([]string{address}, "", p); err != nil {
		return err
	}
	return w.broker.createTopics(ctx)
}

func (w *world) startProcess(running context.Context, name string) error {
	proxy, err := tcpproxy.Start(w.database.server.Addr())
	if err != nil {
		return err
	}
	url, err := w.database.urlBehind(proxy.Addr())
	if err != nil {
		return errors.Join(err, proxy.Close())
	}
	p := newProcess(role{
		Name: name, URL: url, Brokers: w.broker.addresses, Prefix: w.broker.prefix, Ledger: w.ledgers(),
		Quota: w.settings.events / 2, Rate: w.settings.rate() / 2, Sabotage: w.settings.sabotage,
	}, proxy)
	w.processes[name] = p
	w.supervisors.Go(func() error { return p.supervise(running, w.logs()) })
	return nil
}

// stopProcesses ends what is under test, but for the broker and the database, which hold the evidence.
func (w *world) stopProcesses() error {
	var faults []error
	for _, p := range w.processes {
		faults = append(faults, p.kill())
	}
	return errors.Join(faults...)
}

// close ends all that was started. What was noted stays, for whoever wants to see it.
func (w *world) close() error {
	var faults []error
	if w.endAll != nil {
		w.endAll()
		faults = append(faults, w.supervisors.Wait())
	}
	for _, p := range w.processes {
		faults = append(faults, p.proxy.Close())
	}
	if w.broker != nil {
		w.broker.client.Close()
	}
	if w.database != nil {
		faults = append(faults, w.database.close())
	}
	if w.ledger != nil {
		faults = append(faults, w.ledger.file.Close())
	}
	return errors.Join(faults...)
}
