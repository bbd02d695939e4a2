package oncetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/ordering"
)

// Setup makes the handler that is to be proven, on a database made for it: tables, middleware, handler. It is called anew for each
// run, with another database each time, and as often as it takes to find the shortest sequence of a failure.
//
// What it registers with t.Cleanup is called at the end of the run. It must start no relay: messages are looked for in the outbox.
type Setup func(t testing.TB, db Database) message.HandlerFunc

// Database is what a Setup builds on.
type Database struct {
	URL  string        // over TCP, for any driver
	Pool *pgxpool.Pool // on the same database; closed at the end of the run

	// Broker takes whatever is published on it, as a message that has left. Give it to handlers that publish by themselves, and
	// to what stands in for a mailer or another service.
	Broker message.Publisher
}

// Config is what a proof may have to know. The zero value works.
type Config struct {
	// Schema makes the tables, in place of Setup: it is called once for each proof, and the databases of the runs are copies.
	// Set it where making the tables takes long, as a hundred migrations do. With it, Crash and Amnesia also call Setup again on
	// the database of a run: a new process, which has nothing of the old one's memory.
	// Defaults to nil: Setup makes the tables.
	Schema func(ctx context.Context, url string) error

	// Redeliver makes of a message what the producer or the broker makes of it when it comes again: with another delivery id in
	// the metadata, or another UUID where each publishing draws one. It gets a copy, which it may change and return.
	// Defaults to a copy with the same UUID, payload and metadata.
	Redeliver func(msg *message.Message) *message.Message

	// Position tells OutOfOrder where in the history of which entity an event belongs, and has Prove include it. Positions of one
	// entity must be distinct: see ordering.PositionFunc.WithTieBreak.
	// Defaults to the place in the list: all events are the history of one entity, in order. Prove leaves OutOfOrder out then.
	Position ordering.PositionFunc

	// Claims are the tables that Amnesia empties, as "table" or "schema.table".
	// Defaults to watermill_processed_events.
	Claims []string

	// MustSurviveAmnesia makes Amnesia fail, where it would report, and has Prove include it.
	MustSurviveAmnesia bool

	// IgnoreTables are left out of all comparisons, as "table" or "schema.table": a log of deliveries, for one.
	IgnoreTables []string

	// IgnoreColumns are left out where two runs are compared, as "table.column" or "schema.table.column": what is set from the clock or by
	// chance. Columns with such a default need not be named, nor what refers to them. Within a run every column counts.
	IgnoreColumns []string

	// Message tells what of a message counts where two runs are compared.
	// Defaults to topic, payload and metadata. The UUID does not count.
	Message func(topic string, msg *message.Message) string

	// Resends lets a message leave again under its own UUID, in Replay and Concurrent too: for handlers that are idempotent by
	// themselves, before consumers that know a UUID again. Crash and Amnesia allow it in any case.
	Resends bool

	// Copies is how many deliveries of one event Concurrent makes at the same time.
	// Defaults to 4.
	Copies int

	// Runs is how many orders OutOfOrder tries, and how many crash points Crash: all, where there are no more, else a sample.
	// Defaults to 120, which are all orders of five events.
	Runs int

	// Seed draws the samples. A failure prints it.
	// Defaults to another one each time.
	Seed uint64

	// Timeout is how long a delivery may take, of a process that has died too: its code is to end when its context and its
	// connections do.
	// Defaults to 30 s.
	Timeout time.Duration
}

func (c *Config) setDefaults() {
	if c.Redeliver == nil {
		c.Redeliver = func(msg *message.Message) *message.Message { return msg }
	}
	if c.Message == nil {
		c.Message = identity
	}
	if c.Copies == 0 {
		c.Copies = 4
	}
	if c.Runs == 0 {
		c.Runs = 120
	}
	if c.Seed == 0 {
		c.Seed = 1 + rand.Uint64N(1_000_000)
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	c.setDefaults()
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Copies < 2 {
		fault("Copies is %d: at least two are needed", c.Copies)
	}
	if c.Runs < 0 {
		fault("Runs is negative: %d", c.Runs)
	}
	if c.Timeout < 0 {
		fault("Timeout is negative: %v", c.Timeout)
	}
	for _, names := range [][]string{c.Claims, c.IgnoreTables, c.IgnoreColumns} {
		if slices.Contains(names, "") {
			fault("Claims, IgnoreTables or IgnoreColumns holds an empty name")
		}
	}
	return errors.Join(faults...)
}
