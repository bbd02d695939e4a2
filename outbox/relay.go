package outbox

import (
	"context"
	"errors"
	"fmt"
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

	// BatchSize is how many messages are read at a time: also how many, at most, are sent again after a crash.
	// Defaults to 100.
	BatchSize int

	// PollInterval is how long the relay waits when there is nothing to send, unless it is woken. It bounds the delay of
	// messages that other processes have written.
	// Defaults to 250 ms.
	PollInterval time.Duration

	// CloseTimeout is how long Run waits, once its context has ended, for what it is sending.
	// Defaults to 30 s.
	CloseTimeout time.Duration

	// Wake is the Publisher whose COMMITs in this process wake the relay. May be nil: polling finds its messages.
	Wake *Publisher
}

// Validate reports all faults at once.
func (c RelayConfig) Validate() error {
	c.setDefaults()
	faults := []error{checkName(c.Topic)}
	if c.BatchSize < 1 {
		faults = append(faults, errors.New("BatchSize is negative"))
	}
	if c.PollInterval < 0 {
		faults = append(faults, errors.New("PollInterval is negative"))
	}
	if c.CloseTimeout < 0 {
		faults = append(faults, errors.New("CloseTimeout is negative"))
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
	if c.BatchSize == 0 {
		c.BatchSize = 100
	}
	if c.PollInterval == 0 {
		c.PollInterval = 250 * time.Millisecond
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = 30 * time.Second
	}
}

// Relay sends the messages of an outbox to a broker, those of one key in the order of their commits, each at least
// once, and deletes them when the broker has taken them.
type Relay struct {
	pool   *pgxpool.Pool
	broker message.Publisher
	config RelayConfig
	logger watermill.LoggerAdapter
}

// NewRelay reports all faults at once. The relay takes a connection of its own out of the pool while it runs, which then
// does not count among the pool's. logger may be nil.
func NewRelay(pool *pgxpool.Pool, broker message.Publisher, config RelayConfig, logger watermill.LoggerAdapter) (*Relay, error) {
	config.setDefaults()
	faults := []error{config.Validate()}
	if pool == nil {
		faults = append(faults, errors.New("pool is nil"))
	}
	if broker == nil {
		faults = append(faults, errors.New("broker is nil"))
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
// PostgreSQL or the broker fails, it goes on by itself when they are back. Any number of relays may run for one outbox:
// one is at work, and another takes over when it ends or loses its connection. A message may be sent twice then.
func (r *Relay) Run(ctx context.Context) error {
	// Statements and Publish calls under way may finish when ctx ends, within the bound.
	work, release := outlive(ctx, r.config.CloseTimeout)
	defer release()

	var wake <-chan struct{}
	if r.config.Wake != nil {
		signals, stop := r.config.Wake.wake.listen()
		defer stop()
		wake = signals
	}

	d := newDelivery(r, wake)
	failures := backoff{first: 100 * time.Millisecond}
	for ctx.Err() == nil {
		err := r.serve(ctx, work, d, &failures)
		switch {
		case errors.Is(err, ErrCloseTimeout):
			return err
		case ctx.Err() != nil:
			return nil
		}
		delay := failures.next()
		r.logger.Error("Outbox relay lost PostgreSQL, going on", err, watermill.LogFields{"wait": delay})
		sleep(ctx, delay)
	}
	return nil
}

// serve is one session with PostgreSQL, from its connection to its loss.
func (r *Relay) serve(ctx, work context.Context, d *delivery, failures *backoff) error {
	s, err := openSession(ctx, r.pool, r.config.Topic)
	if err != nil {
		return err
	}
	defer s.close(work)
	for ctx.Err() == nil {
		first, err := s.lead(work)
		if err != nil {
			return err
		}
		failures.reset()
		if first {
			r.logger.Info("Outbox relay is at work", nil)
			return d.run(ctx, work, s)
		}
		sleep(ctx, r.config.PollInterval)
	}
	return nil
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
