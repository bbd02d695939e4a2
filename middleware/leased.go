package middleware

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/attempt"
	"github.com/watermill-once/watermill-once/internal/journal"
	"github.com/watermill-once/watermill-once/internal/keytext"
	"github.com/watermill-once/watermill-once/outbox"
)

// Leased makes a Router middleware for handlers whose whole effect is in another system. The event is claimed under a lease before
// the handler runs, and noted as completed after it; a completed event is acked without a call. There is no transaction: a crash in
// between leaves it unknown whether the effect was made, and once the lease is over LeasedConfig.Effects.OnUnknown decides. By
// default the handler runs again and IdempotencyKey gives it the same keys, for the other system to see that it is a repeat.
//
// A handler with several calls, or with an outcome worth keeping, does better with dedupe.Do around each call. Both in one is fine:
// Do inside a Leased handler.
//
// What the handler returns, or publishes with an outbox.Publisher on the message's context, is written in the transaction that notes
// the event as completed. PgxTx, SQLTx and Queue find nothing here. The message's context ends when the lease is lost.
//
// An error leaves the event unknown, for a timeout may have come after the effect, and frees the lease at once; so does a panic,
// which goes on up. Wrapped in dedupe.NotDone an error leaves the event free, and in dedupe.Final it is what every later delivery
// gets; of several errors joined each has to be. Permanent alone does not say that nothing was done: for a malformed message return
// dedupe.NotDone(Permanent(err)).
//
// Its place is that of Transactional, instead of it: innermost. Faults of the config are reported all at once.
func Leased(pool *pgxpool.Pool, config LeasedConfig) (message.HandlerMiddleware, error) {
	if err := errors.Join(Pgx(pool).validate(), config.Validate()); err != nil {
		return nil, fmt.Errorf("middleware: %w", err)
	}
	j, err := journal.New(pool, journal.Config{
		Table:     config.Effects.Table,
		Lease:     config.Effects.Lease,
		Wait:      config.Effects.Wait,
		OnUnknown: journal.Policy(config.Effects.OnUnknown),
		Probe:     foundOnly(config.Effects.Probe),
	})
	if err != nil {
		return nil, fmt.Errorf("middleware: %w", err)
	}
	l := &leased{config: config, pool: pool, journal: j, turn: make(chan struct{}, 1)}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			return nil, l.deliver(h, msg)
		}
	}, nil
}

// foundOnly is a Probe of whose outcome only that there is one counts.
func foundOnly(probe func(context.Context, string) (json.RawMessage, bool, error)) func(context.Context, string) (json.RawMessage, bool, error) {
	if probe == nil {
		return nil
	}
	return func(ctx context.Context, key string) (json.RawMessage, bool, error) {
		_, found, err := probe(ctx, key)
		return json.RawMessage("null"), found, err
	}
}

// LeasedConfig of Leased. The zero value works for handlers that run in a Router and produce no messages.
type LeasedConfig struct {
	// Consumer is the scope of the events: each consumer handles each event once. Nothing is shared with a Transactional of
	// the same name. 1 to 512 bytes. Defaults to the handler's name in the Router.
	Consumer string

	// Key finds the event id, as dedupe.Config.Key does. Defaults to the message's UUID.
	Key dedupe.KeyFunc

	// Effects is the journal: its table, the lease, the wait for the same event in flight elsewhere, and what to do with an event of
	// which nobody knows whether it was handled. Its Probe gets the event id as the key, and the message's context, which knows
	// IdempotencyKey; of the outcome it finds only that there is one counts. Its Consumer is not to be set.
	Effects dedupe.EffectsConfig

	// Outbox takes the messages that handlers return: without it, those that do fail with ErrNoOutbox. No handler runs before a
	// message could be written there, in a transaction that is rolled back. Not with Probe, nor where an operator resolves a call:
	// what the handler would have returned nobody knows then.
	Outbox *outbox.Publisher

	// OnOutcome is called once for each delivery, when it has ended, with the message's context. Its Kind is Fresh, Duplicate or
	// Failed. It must be safe for concurrent use.
	OnOutcome func(ctx context.Context, o Outcome)
}

// Validate reports all faults at once.
func (c LeasedConfig) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Consumer != "" {
		if err := keytext.Check(c.Consumer); err != nil {
			fault("Consumer %w", err)
		}
	}
	if err := c.Effects.Validate(); err != nil {
		fault("Effects: %w", err)
	}
	if c.Outbox != nil && c.Effects.OnUnknown == dedupe.Probe {
		fault("Outbox and OnUnknown Probe: of a call that Probe finds, the messages are not known: use dedupe.Do, and publish behind it")
	}
	if c.Effects.Consumer != "" {
		fault("Effects.Consumer is not used here: set Consumer")
	}
	return errors.Join(faults...)
}

// Schema gives the statements for the tables that c uses.
func (c LeasedConfig) Schema() string {
	if c.Outbox == nil {
		return c.Effects.Schema()
	}
	return c.Effects.Schema() + "\n" + c.Outbox.Schema()
}

type leased struct {
	config   LeasedConfig
	pool     *pgxpool.Pool
	journal  *journal.Journal
	writable atomic.Bool   // the outbox
	turn     chan struct{} // to look whether it is
}

// deliver handles one delivery.
func (l *leased) deliver(h message.HandlerFunc, msg *message.Message) (err error) {
	ctx, start := msg.Context(), time.Now()
	outcome := Outcome{Kind: Failed, Err: errPanicked}
	defer func() {
		msg.SetContext(ctx) // Retry uses the message again
		if l.config.OnOutcome != nil {
			outcome.Duration = time.Since(start)
			l.config.OnOutcome(ctx, outcome)
		}
	}()

	outcome.Consumer, outcome.EventID, err = l.identify(ctx, msg)
	if err == nil {
		outcome.Kind, err = l.handle(ctx, h, msg, &outcome)
	}
	outcome.Err = err
	return err
}

func (l *leased) identify(ctx context.Context, msg *message.Message) (consumer, eventID string, err error) {
	if consumer, err = consumerOf(ctx, l.config.Consumer); err != nil {
		return "", "", err
	}
	if eventID, err = (dedupe.Config{Key: l.config.Key}).EventID(msg); err != nil {
		return consumer, "", unidentified(err, dedupe.ErrInvalidKey)
	}
	outer, ok := runFromContext(ctx)
	if ok && outer.journal != nil && outer.consumer == consumer && outer.eventID == eventID {
		return consumer, eventID, Permanent(blameless(fmt.Errorf("middleware: Leased stands twice around the handler of %q, "+
			"on the Router and on the handler maybe: the inner one would wait for the outer one's lease", consumer)))
	}
	return consumer, eventID, nil
}

func (l *leased) handle(ctx context.Context, h message.HandlerFunc, msg *message.Message, o *Outcome) (Kind, error) {
	a := &attempt.Attempt{Headers: attempt.Headers(msg.Metadata), Outside: true}
	defer a.End()
	var (
		rows    []attempt.Row
		refused error
	)
	// The Probe is to find this too.
	runCtx := context.WithValue(ctx, runKey{}, &run{consumer: o.Consumer, eventID: o.EventID, journal: l.journal})
	id := journal.ID{Consumer: o.Consumer, Key: o.EventID}
	result, err := l.journal.Run(runCtx, id, nil, func(ctx context.Context) (journal.Outcome, error) {
		if err := l.requireOutbox(ctx); err != nil {
			return journal.Outcome{}, dedupe.NotDone(blameless(err))
		}
		o.Attempts++
		ctx = attempt.NewContext(ctx, a)
		msg.SetContext(ctx)
		produced, err := h(msg)
		if final := journal.FinalIn(err); final != nil {
			refused = err
			return journal.Outcome{Final: true, Text: final.Error()}, nil
		}
		if err == nil {
			err = publish(ctx, l.config.Outbox, produced)
		}
		if err != nil {
			return journal.Outcome{}, err
		}
		_, rows, _ = a.End()
		return journal.Outcome{With: attempt.Insert(rows)}, nil
	})
	lost := errors.Is(err, dedupe.ErrOutcomeLost)
	if lost {
		l.writable.Store(false) // to be looked at again, before another call
	}
	switch {
	case lost && refusesRow(err): // of what the handler returned: another call would bring it again
		return Failed, Permanent(err)
	case err != nil:
		return Failed, l.blame(ctx, err, o.Attempts > 0)
	case refused != nil:
		return Failed, refused
	case result.Final:
		return Failed, &dedupe.FinalError{Text: result.Text}
	case !result.Fresh, o.Attempts == 0: // which Probe has found
		return Duplicate, nil
	}
	for _, row := range rows {
		if row.Wake != nil {
			row.Wake()
		}
	}
	return Fresh, nil
}

// outboxPatience is how long to try whether a message can be written.
const outboxPatience = 5 * time.Second

// requireOutbox writes a message and rolls it back, once, and again when an outcome was lost: of an outbox that is missing, or may
// not be written to, each delivery would hear only after it has made its call. One looks at a time, and for so long only: locks may
// be held on the table, and the pool's connections are needed to renew leases.
func (l *leased) requireOutbox(ctx context.Context) error {
	if l.config.Outbox == nil || l.writable.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, outboxPatience)
	defer cancel()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return fmt.Errorf("outbox: %w", ctx.Err())
	}
	if l.writable.Load() {
		return nil
	}
	tx, err := l.pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	defer tx.Rollback(ctx)
	id := watermill.NewUUID()
	row := attempt.Row{Table: l.config.Outbox.Table(), UUID: id, Topic: "watermill-once", Key: id, Payload: []byte{}, Metadata: "{}"}
	for _, insert := range attempt.Insert([]attempt.Row{row}) {
		if _, err := tx.Exec(ctx, insert.SQL, insert.Args...); err != nil && !refusesRow(err) {
			return fmt.Errorf("outbox: %w", err)
		}
	}
	l.writable.Store(true)
	return nil
}

// blame marks an error for which the message is not to blame.
func (l *leased) blame(ctx context.Context, err error, handled bool) error {
	switch {
	case ctx.Err() != nil:
		return blameless(err)
	case handled:
		return err
	case integrity(err): // such as a letter in the event id that the database's encoding lacks
		return Permanent(fmt.Errorf("middleware: %w", err))
	default:
		return fmt.Errorf("middleware: %w", err)
	}
}
