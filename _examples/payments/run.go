package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/watermill-once/watermill-once/_examples/broker"
	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

// ownDatabase as the broker's URL means the database of the orders.
const ownDatabase = "postgres://"

type config struct {
	database string // "": a server is started
	broker   string
	orders   int
	kills    int
	seed     uint64
	verbose  bool
}

func (c config) validate() error {
	var faults []error
	if c.orders < 1 {
		faults = append(faults, errors.New("-orders: at least one"))
	}
	if c.kills < 0 || c.kills > c.orders {
		faults = append(faults, errors.New("-kills: from none to one for each order"))
	}
	switch address, _, _ := strings.Cut(c.broker, "?"); {
	case c.broker == ownDatabase:
	case address == "gochannel://", address == "kafka://embedded":
		faults = append(faults, errors.New("-broker: one in this program's memory is out of the reach of its workers"))
	default:
		faults = append(faults, broker.Check(c.broker))
	}
	return errors.Join(faults...)
}

// pass is a kind of provider, and the policy that fits it.
type pass struct {
	title     string
	keys      bool // the provider honours idempotency keys
	onUnknown dedupe.OnUnknown
}

var passes = []pass{
	{"the provider honours idempotency keys: OnUnknown is Repeat", true, dedupe.Repeat},
	{"the provider knows no keys: OnUnknown is Refuse", false, dedupe.Refuse},
	{"the provider knows no keys and can be asked: OnUnknown is Probe", false, dedupe.Probe},
}

// run makes the passes, one after the other. It returns nil only if all that must hold held in each.
func run(ctx context.Context, c config, out io.Writer) (err error) {
	if err := c.validate(); err != nil {
		return err
	}
	if c.database == "" {
		server, err := pgserver.Start(ctx, pgserver.Config{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		c.database = server.URL("postgres")
	}
	fmt.Fprintf(out, "seed %d, %d orders and %d kills in each pass\n", c.seed, c.orders, c.kills)
	for _, p := range passes {
		if err := c.prove(ctx, p, out); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(out, "\nno order was charged twice")
	return err
}
