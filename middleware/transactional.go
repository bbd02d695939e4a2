package middleware

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/attempt"
	"github.com/watermill-once/watermill-once/internal/keycache"
	"github.com/watermill-once/watermill-once/internal/keytext"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

// Transactional makes a Router middleware that runs each handler in one transaction with the claim of the event, the version
// guard of its entity, and the outbox rows of what it produces. Faults of the config are reported all at once.
//
// Add it last, innermost: PoisonQueue, Retry and Recoverer belong outside. Nothing must stand between it and the
// handler that turns errors into nil, and the handler must not ack its message by itself.
func Transactional(db DB, config Config) (message.HandlerMiddleware, error) {
	if err := errors.Join(validateDB(db), config.Validate()); err != nil {
		return nil, fmt.Errorf("middleware: %w", err)
	}
	config.setDefaults()
	t := &transactional{
		db:      db,
		config:  config,
		prelude: prelude(config.LockTimeout),
		claim:   withPrelude(config.Dedupe.ClaimSQL(), config.LockTimeout),
		guard:   config.Ordering.GuardSQL(),
		cache:   keycache.New(config.Dedupe.Cache, config.Dedupe.CacheTTL),
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			return nil, t.deliver(h, msg)
		}
	}, nil
}

type transactional struct {
	db           DB
	config       Config
	prelude      attempt.Statement
	claim, guard string
	cache        *keycache.Cache // nil: off
}

// settings are what a transaction begins with: its lock_timeout and its mark.
func settings(lockTimeout time.Duration) string {
	return fmt.Sprintf("set_config('lock_timeout', '%d', true) is not null and %s is not null", max(1, lockTimeout.Milliseconds()), mark)
}

// prelude makes the settings where there is no claim to make them.
func prelude(lockTimeout time.Duration) attempt.Statement {
	return attempt.Statement{SQL: "select " + settings(lockTimeout)}
}

// withPrelude has the claim make the settings, with its first value and so before it can wait for a rival: a statement of
// their own is a twentieth of what a duplicate costs.
func withPrelude(claim string, lockTimeout time.Duration) string {
	return strings.Replace(claim, "$1::text", "case when "+settings(lockTimeout)+" then $1::text end", 1)
}

// errPanicked stands in the Outcome where a panic or runtime.Goexit passes through, which goes on up.
var errPanicked = errors.New("a panic, or runtime.Goexit")

// deliver handles one delivery, in as many attempts as it takes.
func (t *transactional) deliver(h message.HandlerFunc, msg *message.Message) (err error) {
	ctx, start := msg.Context(), time.Now()
	outcome := Outcome{Kind: Failed, Err: errPanicked}
	defer func() {
		msg.SetContext(ctx)
		if t.config.OnOutcome != nil {
			outcome.Duration = time.Since(start)
			t.config.OnOutcome(ctx, outcome)
		}
	}()

	d, err := t.identify(ctx, msg)
	outcome.Consumer, outcome.EventID = d.consumer, d.eventID
	if err != nil {
		outcome.Err = err
		return err
	}
	if d.claimed && t.cache.Has(d.consumer, d.remembered()) {
		outcome.Kind, outcome.Err = Duplicate, nil
		return nil
	}
	for tries := 1; ; tries++ {
		var kind Kind
		err = t.db.use(ctx, func(s session) (err error) {
			outcome.Attempts++
			kind, err = t.attempt(ctx, s, h, msg, d)
			return err
		})
		if err == nil {
			outcome.Kind, outcome.Err = kind, nil
			if d.claimed {
				t.cache.Add(d.consumer, d.remembered())
			}
			return nil
		}
		if tries >= t.config.MaxAttempts || !again(err) || !pause(ctx, tries) {
			outcome.Err = err
			return err
		}
	}
}

// again tells whether to run the attempt once more: it lost to a concurrent one, and nothing of it is committed.
func again(err error) bool {
	return conflict(err) && !IsPermanent(err) && !errors.Is(err, ErrCommitUnknown)
}

// pause lets rivals part: up to 10 ms after the first try, twice as long after each further one. False: the context has
// ended.
func pause(ctx context.Context, tries int) bool {
	bound := 10 * time.Millisecond << min(tries-1, 6)
	timer := time.NewTimer(rand.N(bound))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// delivery is what is known of a message before anything is begun. It is found once, since handlers change messages.
type delivery struct {
	consumer, eventID string
	digest            []byte // nil without a fingerprint
	claimed, guarded  bool
	dated             bool
	statements        []attempt.Statement // claim or prelude, then the guard and the look at its age where there are such
	headers           map[string]string
}

// remembered is what the cache knows the event by. No id has a NUL.
func (d delivery) remembered() string {
	if d.digest == nil {
		return d.eventID
	}
	return d.eventID + "\x00" + string(d.digest)
}

func (t *transactional) identify(ctx context.Context, msg *message.Message) (delivery, error) {
	d := delivery{headers: attempt.Headers(msg.Metadata)}
	var err error
	if d.consumer, err = consumerOf(ctx, t.config.Consumer); err != nil {
		return d, err
	}

	eventID, err := t.config.Dedupe.EventID(msg)
	if outer, ok := runFromContext(ctx); ok && outer.db == t.db && outer.consumer == d.consumer && outer.eventID == eventID && !outer.attempt.Ended() {
		return d, Permanent(blameless(fmt.Errorf("middleware: Transactional stands twice around the handler of %q, on the Router and on the handler maybe: "+
			"the inner one would wait for the outer one's claim", d.consumer)))
	}
	switch {
	case err == nil:
		d.eventID = eventID
	case t.config.Dedupe.Disabled && errors.Is(err, dedupe.ErrMissingKey): // nothing depends on it
	default:
		return d, unidentified(err, dedupe.ErrInvalidKey)
	}
	d.claimed = !t.config.Dedupe.Disabled
	d.statements = make([]attempt.Statement, 1, 3)
	if d.statements[0] = t.prelude; d.claimed {
		d.statements[0] = attempt.Statement{SQL: t.claim, Args: []any{d.consumer, d.eventID}}
		if d.digest = t.config.Dedupe.Digest(msg); d.digest != nil {
			d.statements[0].Args = append(d.statements[0].Args, d.digest)
		}
	}

	if t.config.Ordering.Position != nil {
		p, err := t.config.Ordering.PositionOf(msg)
		if err != nil {
			return d, unidentified(err, ordering.ErrInvalidPosition)
		}
		d.guarded = true
		d.statements = append(d.statements, attempt.Statement{SQL: t.guard, Args: []any{
			d.consumer, p.Entity, p.Version, p.TieBreak, d.eventID, p.Clock,
		}})
	}

	if t.config.MaxAge > 0 {
		micros, err := t.config.timeOf(msg)
		if err != nil {
			return d, unidentified(err, ErrInvalidTime)
		}
		d.dated = true
		d.statements = append(d.statements, attempt.Statement{SQL: tooOldSQL, Args: []any{micros, t.config.MaxAge.Microseconds()}})
	}
	return d, nil
}

// consumerOf gives the configured consumer, or the handler's name in the Router.
func consumerOf(ctx context.Context, configured string) (string, error) {
	consumer := configured
	if consumer == "" {
		consumer = message.HandlerNameFromCtx(ctx)
	}
	if err := keytext.Check(consumer); err != nil {
		return consumer, fmt.Errorf("middleware: %w: the handler's name %w", ErrNoConsumer, err)
	}
	return consumer, nil
}

// unidentified tells a message without a good id, position or time, which belongs in the poison queue, from a config that finds none in any
// message.
func unidentified(err, invalid error) error {
	err = fmt.Errorf("middleware: %w", err)
	if errors.Is(err, invalid) {
		return err
	}
	return Permanent(blameless(err))
}

// attempt is one transaction.
func (t *transactional) attempt(ctx context.Context, s session, h message.HandlerFunc, msg *message.Message, d delivery) (Kind, error) {
	committed := false
	defer func() {
		if !committed { // on every other path, a panic's too
			s.rollback(ctx)
		}
	}()

	affected, err := s.begin(ctx, d.statements)
	switch {
	case d.digest != nil && mismatch(err):
		return Failed, fmt.Errorf("middleware: %w: message %.80q", dedupe.ErrFingerprintMismatch, msg.UUID)
	case err != nil:
		return Failed, notBegun(fmt.Errorf("middleware: begin: %w", err))
	case d.claimed && affected[0] == 0:
		return Duplicate, nil
	case d.guarded && affected[1] == 0:
		if err := t.commit(ctx, s, nil, nil); err != nil {
			return Failed, blameless(err) // no work of the handler's is in it
		}
		committed = true
		return Stale, nil
	case d.dated && affected[len(affected)-1] == 1: // after those two: what is known of the event goes before what is not
		return Failed, fmt.Errorf("middleware: %w (%v): message %.80q", ErrTooOld, t.config.MaxAge, msg.UUID)
	}

	queued, rows, err := t.handle(ctx, s, h, msg, d)
	if err != nil {
		if !errors.Is(err, ErrTxEnded) && s.ended(ctx) {
			err = fmt.Errorf("middleware: %w: %w", ErrTxEnded, err)
		}
		s.rollback(ctx)
		return Failed, blame(ctx, s, err)
	}
	if err := t.commit(ctx, s, queued, rows); err != nil {
		return Failed, err
	}
	committed = true
	return Fresh, nil
}

// notBegun is an error from before the handler ran, for which the message is not to blame, unless it speaks of data: then
// of the event id or the position, such as a letter that the database's encoding lacks.
func notBegun(err error) error {
	if integrity(err) {
		return Permanent(err)
	}
	return blameless(err)
}

// blame finds out, after the rollback, whether the message may be blamed for an error.
func blame(ctx context.Context, s session, err error) error {
	if s.broken() || ctx.Err() != nil {
		return blameless(err)
	}
	return err
}

// handle calls the handler and gives what it left to be written with the COMMIT.
func (t *transactional) handle(ctx context.Context, s session, h message.HandlerFunc, msg *message.Message, d delivery) ([]attempt.Statement, []attempt.Row, error) {
	a := &attempt.Attempt{Headers: d.headers}
	defer a.End()
	handlerCtx := attempt.NewContext(context.WithValue(ctx, runKey{}, &run{
		db:       t.db,
		consumer: d.consumer,
		eventID:  d.eventID,
		attempt:  a,
		tx:       s.handler(a),
	}), a)

	msg.SetContext(handlerCtx)
	defer msg.SetContext(ctx) // Retry uses the message again
	produced, err := h(msg)
	if err == nil {
		err = publish(handlerCtx, t.config.Outbox, produced)
	}
	queued, rows, running := a.End()
	if running {
		s.hangUp(a)
		return nil, nil, errors.Join(err, errRunning)
	}
	if err != nil {
		return nil, nil, err
	}
	if err := s.settle(); err != nil {
		return nil, nil, fmt.Errorf("middleware: %w", err)
	}
	return queued, rows, nil
}

// errRunning: pgx's connections are for one goroutine at a time, and what this one would write comes after the COMMIT.
var errRunning = errors.New("middleware: the handler returned while a goroutine of its still used the transaction")

// publish puts what the handler returned into the outbox: the Router would publish it after the COMMIT, and a crash in
// between would lose it.
func publish(ctx context.Context, publisher *outbox.Publisher, produced []*message.Message) error {
	if len(produced) == 0 {
		return nil
	}
	if publisher == nil {
		return fmt.Errorf("middleware: %w", ErrNoOutbox)
	}
	topic := message.PublishTopicFromCtx(ctx)
	if topic == "" {
		return fmt.Errorf("middleware: %w", ErrNoTopic)
	}
	return publisher.PublishContext(ctx, topic, produced...)
}

func (t *transactional) commit(ctx context.Context, s session, queued []attempt.Statement, rows []attempt.Row) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("middleware: the message's context ended before COMMIT: %w", err)
	}
	// From here on nothing cuts it short: the outcome would be unknown.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.config.CommitTimeout)
	defer cancel()

	inserts := s.inserts(rows)
	done, err := s.commit(ctx, append(queued, inserts...))
	if err != nil {
		err = fmt.Errorf("middleware: commit: %w", err)
		s.rollback(ctx)
		if len(queued) <= done && done < len(queued)+len(inserts) && (!integrity(err) || offsetTaken(err)) {
			err = blameless(err) // an outbox that cannot take any row is no fault of this message
		}
		return blame(ctx, s, err)
	}
	for _, row := range rows {
		if row.Wake != nil {
			row.Wake()
		}
	}
	return nil
}
