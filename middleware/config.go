package middleware

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/keytext"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

// Config of Transactional. The zero value works for handlers that run in a Router and produce no messages.
type Config struct {
	// Consumer is the scope of claims and versions: each consumer handles each event once. Two services that share
	// a database and a consumer name share their claims. 1 to 512 bytes. Defaults to the handler's name in the Router.
	Consumer string

	// Dedupe tells one event from another. Defaults to the message's UUID as the event id.
	Dedupe dedupe.Config

	// Ordering keeps older events from overwriting newer state. Defaults to no check.
	Ordering ordering.Config

	// Outbox takes the messages that handlers produce: without it, those that produce fail with ErrNoOutbox. Its
	// table is found by the search_path that is set at COMMIT: a handler that sets another one (for a tenant's schema) must set
	// it back.
	Outbox *outbox.Publisher

	// MaxAttempts is how often an attempt is run, the first time included, while it ends in a serialization failure or
	// a deadlock. Other errors are the Router's to retry. Defaults to 3.
	MaxAttempts int

	// LockTimeout bounds each wait for a lock in the transaction, the handler's own statements included: it is the
	// transaction's lock_timeout. Raise it above the longest handler's time, since a second copy of an event waits
	// for the first to end. A wait that runs out is an error that is not permanent. Defaults to 10 s.
	LockTimeout time.Duration

	// CommitTimeout bounds the COMMIT and what is written together with it: queued writes, outbox rows and the wait
	// for their locks. When it runs out the outcome is unknown. Must be longer than LockTimeout. Defaults to 30 s.
	CommitTimeout time.Duration

	// MaxAge refuses an event that is older, by Time and the database's clock, with ErrTooOld, which is permanent. Set it where claims
	// are swept, to their age or less: an event from before would be handled as new, since nobody knows any more whether it
	// was handled. One that is still known to be a duplicate or stale is that. An event of the future is not too old. Defaults to 0: no limit.
	MaxAge time.Duration

	// Time finds when the event of a message happened, which its replays must not change: CloudEventTime, JSONTime, JSONUnixTime, or
	// one's own. It must depend on the message alone: any error, and a zero time, is an ErrInvalidTime, which is permanent. Needed
	// with MaxAge, and asked only then.
	Time func(*message.Message) (time.Time, error)

	// OnOutcome is called once for each delivery, when it has ended, with the message's context. It is the hook for
	// metrics and logs. It must be safe for concurrent use.
	OnOutcome func(ctx context.Context, o Outcome)
}

func (c *Config) setDefaults() {
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 3
	}
	if c.LockTimeout == 0 {
		c.LockTimeout = 10 * time.Second
	}
	if c.CommitTimeout == 0 {
		c.CommitTimeout = 30 * time.Second
	}
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	c.setDefaults()
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if c.Consumer != "" {
		if err := keytext.Check(c.Consumer); err != nil {
			fault("Consumer %w", err)
		}
	}
	if err := c.Dedupe.Validate(); err != nil {
		fault("Dedupe: %w", err)
	}
	if err := c.Ordering.Validate(); err != nil {
		fault("Ordering: %w", err)
	}
	if c.MaxAge < 0 {
		fault("MaxAge is negative: %v", c.MaxAge)
	}
	if c.MaxAge > 0 && c.Time == nil {
		fault("MaxAge needs Time: what else would tell how old a message is?")
	}
	if c.MaxAttempts < 0 {
		fault("MaxAttempts is negative: %d", c.MaxAttempts)
	}
	if c.LockTimeout < 0 {
		fault("LockTimeout is negative: %v", c.LockTimeout)
	}
	if c.LockTimeout.Milliseconds() > math.MaxInt32 {
		fault("LockTimeout is longer than PostgreSQL's 2,147,483,647 ms: %v", c.LockTimeout)
	}
	if c.CommitTimeout <= c.LockTimeout {
		fault("CommitTimeout (%v) must be longer than LockTimeout (%v): locks are waited for inside the COMMIT", c.CommitTimeout, c.LockTimeout)
	}
	return errors.Join(faults...)
}
