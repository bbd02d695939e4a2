package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"
)

// role is what a process of the system under test is, as its parent tells it.
type role struct {
	Name     string // "state-1", of the consumer state; "producer-1", "relay-1", "broker"
	URL      string // of the database
	Brokers  []string
	Prefix   string // of topics and groups
	Ledger   string // the directory
	Quota    int    // events of a producer
	Rate     int    // events a second of a producer
	Sabotage sabotage

	// Of the broker alone.
	Port    int
	DataDir string
}

// childArgument makes this program one of the processes under test.
const childArgument = "child"

func runChild(config string) error {
	var r role
	if err := json.Unmarshal([]byte(config), &r); err != nil {
		return err
	}
	ctx := context.Background() // such a process is killed, and has no other end
	if r.Name == brokerName {
		return r.serveBroker()
	}
	l, err := openLedger(r.Ledger, r.Name)
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, r.URL)
	if err != nil {
		return err
	}
	switch kind, _, _ := strings.Cut(r.Name, "-"); kind {
	case producer:
		return r.produce(ctx, pool, l)
	case "relay":
		return r.relay(ctx, pool, l)
	default:
		for _, c := range consumers {
			if c.Name == kind {
				return r.consume(ctx, c, pool, l)
			}
		}
		return fmt.Errorf("no role %q", r.Name)
	}
}

// serveBroker is a Kafka whose data outlive it. What it has answered for, it has written, and the system has that when the process
// is killed.
func (r role) serveBroker() error {
	if err := os.MkdirAll(r.DataDir, 0o755); err != nil {
		return err
	}
	if _, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.Ports(r.Port),
		kfake.DataDir(r.DataDir),
		kfake.GroupMinSessionTimeout(minSession),
	); err != nil {
		return err
	}
	select {}
}

// second tells whether this is the second process of its kind, which does some things in another way.
func (r role) second() bool { return strings.HasSuffix(r.Name, "-2") }
