package dedupe

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/internal/ddl"
	"github.com/watermill-once/watermill-once/internal/journal"
	"github.com/watermill-once/watermill-once/internal/keytext"
	"github.com/watermill-once/watermill-once/internal/sqlname"
)

// Effects is the journal of calls to other systems, which Do makes. It holds nothing but the pool, and may be used by several
// goroutines.
type Effects struct {
	config  EffectsConfig
	journal *journal.Journal
}

// NewEffects reports all faults of the config at once. The pool needs a connection now and then, and none while a call is made; but
// where others hold all of them for long, leases cannot be renewed and calls are told to end.
func NewEffects(pool *pgxpool.Pool, config EffectsConfig) (*Effects, error) {
	faults := config.Validate()
	if pool == nil {
		faults = errors.Join(errors.New("dedupe: pool is nil"), faults)
	}
	if faults != nil {
		return nil, faults
	}
	j, err := journal.New(pool, journal.Config{
		Table:     config.Table,
		Lease:     config.Lease,
		Wait:      config.Wait,
		OnUnknown: journal.Policy(config.OnUnknown),
		Probe:     config.Probe,
	})
	if err != nil {
		return nil, err
	}
	return &Effects{config, j}, nil
}

// EffectsConfig says where calls are remembered, and what becomes of those whose outcome nobody knows. The zero value works.
type EffectsConfig struct {
	// Consumer is the scope of the keys. Set it where several services share a database and may use one key for two things; and, to
	// List and Resolve what once.Leased has left unknown, to that handler's consumer. Up to 512 bytes. Defaults to "": one
	// scope for all.
	Consumer string

	// Table is the journal's table, as a name or as schema.name, each part taken as it stands (quoted).
	// Defaults to "watermill_effects".
	Table string

	// Lease is how long a call counts as in flight after its process has died. While the process lives the lease is renewed at
	// each third of it, however long the call takes; where that fails, as when the database is away, the call's context ends
	// before the lease does. So it is also the longest outage of the database that a call lives through. 100 ms or more.
	//
	// A process that was killed holds its key for so long: others get ErrInFlight, and on an ordered topic the partition behind the
	// message waits. Retry with a budget shorter than the lease gives up before; the broker brings the message again then.
	// Defaults to 30 s.
	Lease time.Duration

	// Wait is how long a caller who meets a call in flight waits for its outcome, before ErrInFlight. Negative: not at all.
	// Defaults to 1 s.
	Wait time.Duration

	// OnUnknown is what to do with a call of which nobody knows whether it took effect. Defaults to Repeat.
	OnUnknown OnUnknown

	// Probe asks the other system what became of a key, for OnUnknown: Probe. What it finds is stored as the outcome, as JSON of
	// the T of Do, and so is the refusal that it returns as Final(err). Where it finds nothing the call is made. Another error is
	// returned, and the call stays unknown: NotDone here says nothing of the call. It must see a call that is still under way there,
	// or wait until none can be. It runs under the lease, and its ctx descends from that of Do: what the caller has put on that, such
	// as the order, is there.
	Probe func(ctx context.Context, key string) (outcome json.RawMessage, found bool, err error)
}

// OnUnknown is a policy for calls of which nobody knows whether they took effect: the process died, the call returned an error
// that may be a timeout, or its outcome could not be stored.
type OnUnknown int

const (
	// Repeat calls again with the same idempotency key: for systems that honour keys.
	Repeat OnUnknown = iota
	// Probe asks EffectsConfig.Probe first: for systems that can be asked.
	Probe
	// Refuse returns ErrUnknown until an operator has resolved it: for systems that can do neither. Send those no header
	// Idempotency-Key, by which net/http repeats a request by itself: see Do.
	Refuse
)

func (o OnUnknown) String() string {
	switch o {
	case Repeat:
		return "repeat"
	case Probe:
		return "probe"
	case Refuse:
		return "refuse"
	default:
		return fmt.Sprintf("OnUnknown(%d)", int(o))
	}
}

// Validate tells everything that is wrong with the EffectsConfig.
func (c EffectsConfig) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("dedupe: "+format, args...)) }
	if c.Consumer != "" {
		if err := keytext.Check(c.Consumer); err != nil {
			fault("Consumer %w", err)
		}
	}
	if _, err := c.table(); err != nil {
		faults = append(faults, err)
	}
	if c.Lease != 0 && c.Lease < 100*time.Millisecond {
		fault("Lease: %s is too short to be renewed: 100ms at least", c.Lease)
	}
	if c.OnUnknown < Repeat || c.OnUnknown > Refuse {
		fault("OnUnknown: there is no %s", c.OnUnknown)
	}
	if c.OnUnknown == Probe && c.Probe == nil {
		fault("Probe is nil, and OnUnknown wants one")
	}
	if c.OnUnknown != Probe && c.Probe != nil {
		fault("Probe is never asked: OnUnknown is %s", c.OnUnknown)
	}
	return errors.Join(faults...)
}

// QuotedTable is Table, or its default, quoted for use in SQL. An EffectsConfig that Validate refuses gives a name that
// PostgreSQL refuses.
func (c EffectsConfig) QuotedTable() string {
	table, err := c.table()
	if err != nil {
		return `""`
	}
	return table
}

// table gives the name quoted.
func (c EffectsConfig) table() (string, error) {
	quoted, err := sqlname.Table(cmp.Or(c.Table, journal.DefaultTable))
	if err != nil {
		return "", fmt.Errorf("dedupe: Table: %w", err)
	}
	return quoted, nil
}

//go:embed effects_schema.sql
var effectsSchema string

// Schema is the package's effects_schema.sql under the configured name. What stands at Config.Schema holds for it too.
func (c EffectsConfig) Schema() string {
	return ddl.Rename(effectsSchema, journal.DefaultTable, c.QuotedTable())
}
