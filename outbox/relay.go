package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrCloseTimeout is returned by Run where a call of the broker's Publish did not return within CloseTimeout and was
// left behind, still running. Its message may have been sent, and will be sent again.
var ErrCloseTimeout = errors.New("outbox: relay closed while the broker's Publish was still running")

// RelayConfig is about one relay. The zero value sends what the default Publisher writes.
type RelayConfig struct {
	// Topic is the outbox's name, as in Config.
	// Defaults to "outbox".
	Topic string

	// BatchSize is how many messages, at most, the broker has and the table too: that is how many may be sent again
	// after a crash. Messages are read by half as many at a time, as are the batches for a BatchPublisher; about as many
	// again wait in memory. Where messages are large, fewer do: no more than have 64 MB of payload together.
	// Defaults to 2,000.
	BatchSize int

	// Concurrency is how many messages the broker is given at a time, of as many keys. A BatchPublisher gets one batch
	// at a time instead. A call of Publish cannot be ended from here: one that has not returned after ten seconds keeps
	// its key waiting, and does not count any more, up to as many again. Of a topic that has half of the workers
	// wait for it, new messages are tried one at a time, as of one that fails. When all of these calls hang nothing is
	// sent until one returns, and a batch that hangs holds up all: give the broker's client a timeout. A log entry says
	// when the calls of all workers hang.
	// Defaults to 64.
	Concurrency int

	// Shards is into how many parts the keys are divided among the relays of an outbox: each part is one relay's at a
	// time, so no more relays than that have something to do. All relays of an outbox must agree; to change it, stop
	// them all. At most 1,024.
	// Defaults to 16.
	Shards int

	// MaxAttempts is how often a message is tried before it is parked: it stays in the table, with the error, until it
	// is retried or discarded (Config.RetryParked, Config.DiscardParked). An attempt counts if the error says that it is
	// permanent, by a method Permanent() bool; or if the broker has taken other messages since the last one. So a broker
	// that is down parks nothing. Where no other key has anything to send, nobody can tell whether it is the broker or
	// the message: one attempt an hour counts then. Attempts are 30 seconds apart at most.
	// Defaults to 25: some ten minutes beside messages that are taken, and a day alone.
	MaxAttempts int

	// PassParked lets the messages behind a parked one go on. A parked message that is retried is then out of order.
	// Defaults to false: the key waits until its parked message is retried or discarded.
	PassParked bool

	// KeepSent leaves messages in the table when they have been sent, with the time in sent_at. Deleting them is the
	// user's then, or once.Sweeper's. A relay walks over them when it starts or takes over another's shards, unless there is an index
	// for that: create index on watermill_outbox ("offset") where sent_at is null.
	// One that is to be sent again needs a time for it: set sent_at = null, next_attempt_at = now(). With sent_at alone
	// it waits until a relay starts.
	// Defaults to false: they are deleted.
	KeepSent bool

	// PollInterval is how long the relay waits, at most, before it looks again though nobody has woken it. While there is
	// something now and then it looks more often.
	// Defaults to 250 ms.
	PollInterval time.Duration

	// CloseTimeout is how long Run waits, once its context has ended, for what it is sending.
	// Defaults to 30 s.
	CloseTimeout time.Duration

	// Wake is the Publisher whose COMMITs in this process wake the relay. May be nil: see Publisher.Notify for those of
	// other processes; else polling finds the messages.
	Wake *Publisher
}

// Validate reports all faults at once.
func (c RelayConfig) Validate() error {
	c.setDefaults()
	faults := []error{checkName(c.Topic)}
	for _, setting := range []struct {
		name  string
		value int
	}{
		{"BatchSize", c.BatchSize}, {"Concurrency", c.Concurrency}, {"Shards", c.Shards}, {"MaxAttempts", c.MaxAttempts},
		{"PollInterval", int(c.PollInterval)}, {"CloseTimeout", int(c.CloseTimeout)},
	} {
		if setting.value < 0 {
			faults = append(faults, errors.New(setting.name+" is negative"))
		}
	}
	if c.Shards > maxShards {
		faults = append(faults, fmt.Errorf("%s is %d, more than %d", "Shards", c.Shards, maxShards))
	}
	if c.Wake != nil && c.Wake.config.Topic != c.Topic {
		faults = append(faults, fmt.Errorf("Wake writes to the outbox %q, not to %q", c.Wake.config.Topic, c.Topic))
	}
	return errors.Join(faults...)
}

func (c *RelayConfig) setDefaults() {
	if c.Topic == "" {
		c.Topic = "outbox"
	}
	for _, setting := range []struct {
		value *int
		usual int
	}{{&c.BatchSize, 2000}, {&c.Concurrency, 64}, {&c.Shards, 16}, {&c.MaxAttempts, 25}} {
		if *setting.value == 0 {
			*setting.value = setting.usual
		}
	}
	if c.PollInterval == 0 {
		c.PollInterval = 250 * time.Millisecond
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = 30 * time.Second
	}
}

// Relay sends the messages of an outbox to a broker, those of one key in the order of their commits, each at least
// once, and deletes them when the broker has taken them. Each leaves with its own UUID, its metadata, and SequenceKey.
type Relay struct {
	pool   *pgxpool.Pool
	broker message.Publisher
	config RelayConfig
	logger watermill.LoggerAdapter
}

// NewRelay reports all faults at once. The relay takes two connections of its own out of the pool while it runs, which
// then do not count among the pool's. Where the broker is a BatchPublisher it gets batches. logger may be nil.
func NewRelay(pool *pgxpool.Pool, broker message.Publisher, config RelayConfig, logger watermill.LoggerAdapter) (*Relay, error) {
	config.setDefaults()
	faults := []error{config.Validate()}
	if pool == nil {
		faults = append(faults, errors.New("pool is nil"))
	}
	switch broker.(type) {
	case nil:
		faults = append(faults, errors.New("broker is nil"))
	case *Publisher:
		faults = append(faults, errors.New("broker is an outbox's Publisher, which writes to the table: it must be that of the broker"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("outbox: relay: %w", err)
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return &Relay{
		pool:   pool,
		broker: broker,
		config: config,
		logger: logger.With(watermill.LogFields{"outbox": config.Topic}),
	}, nil
}

// Run sends until ctx ends, and returns nil then, having finished what it was sending; or ErrCloseTimeout. Where
// PostgreSQL or the broker fails, it goes on by itself when they are back. It gives up where it cannot work: ErrPooled,
// ErrShards, ErrSequence.
//
// Any number of relays may run for one outbox, in one process or many. They share its keys by shards, and when one comes,
// goes or dies, its shards move within seconds. A message may be sent twice then; what is sent for the first time is
// still in the order of its key. A relay that was frozen (its process stopped, its host away) loses its shards after ten
// seconds, and when it wakes sends no more than what it had already begun to give to the broker.
func (r *Relay) Run(ctx context.Context) error {
	// Statements and Publish calls under way may finish when ctx ends, within the bound.
	work, release := outlive(ctx, r.config.CloseTimeout)
	defer release()

	bell := newBell()
	var helpers sync.WaitGroup
	defer helpers.Wait()
	listening, stopListening := context.WithCancel(ctx)
	defer stopListening()
	helpers.Go(func() { r.listen(listening, bell) })
	if r.config.Wake != nil {
		defer r.config.Wake.wake.add(bell)()
	}

	d := newDelivery(ctx, work, r, bell.rung)
	failures := backoff{first: firstBackoff}
	for ctx.Err() == nil {
		began := time.Now()
		entered, err := r.serve(ctx, work, d)
		if entered && (!refused(err) || time.Since(began) > longestBackoff) {
			failures.reset()
		}
		switch {
		case errors.Is(err, ErrCloseTimeout):
			return err
		case errors.Is(err, ErrPooled), errors.Is(err, ErrShards), errors.Is(err, ErrSequence):
			return errors.Join(err, d.waitFor(work, r.config.CloseTimeout))
		case ctx.Err() != nil:
			return d.wait(work)
		}
		delay := failures.next()
		r.logger.Error("Outbox relay cannot work, trying again", err, watermill.LogFields{"wait": delay})
		sleep(ctx, delay)
	}
	return d.wait(work)
}

// serve is one session with PostgreSQL, from its connection to its loss. entered tells whether it could begin to work.
func (r *Relay) serve(ctx, work context.Context, d *delivery) (entered bool, err error) {
	s, err := openSession(ctx, r.pool, r.config)
	if err != nil {
		return false, err
	}
	defer s.close(work)
	if s.rowSecurity {
		// A policy that lets all rows through does no harm, and nobody can tell from here.
		r.logger.Error("Row security holds for the relay's role: messages that its policies hide are not sent, those that they keep from "+
			"being updated or deleted are sent again; give the role bypassrls", nil, watermill.LogFields{"table": s.table})
	}
	for ctx.Err() == nil {
		switch entered, err := s.enter(ctx, r.config.Topic); {
		case err != nil:
			return false, err
		case entered:
			return true, d.run(ctx, work, s)
		}
		sleep(ctx, min(r.config.PollInterval, beat))
	}
	return false, nil
}

// outlive gives a context with the values of ctx that ends a while after it.
func outlive(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(by)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() {
		stop()
		cancel()
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
