package main

import (
	"context"
	"fmt"
	"io"
	"time"

	once "github.com/watermill-once/watermill-once/middleware"
)

// prove has the provider do its worst, and returns nil if all that must hold does.
func (s *service) prove(ctx context.Context, p *provider, events []event, steps []step, out io.Writer) error {
	expected, err := s.source.outcomeOf(events)
	if err != nil {
		return err
	}
	stop := s.showProgress(ctx, p, steps, out)
	defer stop()

	if err := p.send(ctx, steps); err != nil {
		return err
	}
	if err := s.settle(ctx, p, expected.events); err != nil {
		return err
	}

	// One by one, long after: nothing may change by it, not even a time.
	before, err := s.fingerprint(ctx)
	if err != nil {
		return err
	}
	replays := planReplays(events, 100)
	if err := p.send(ctx, replays); err != nil {
		return err
	}
	if err := s.settle(ctx, p, expected.events); err != nil {
		return err
	}
	after, err := s.fingerprint(ctx)
	if err != nil {
		return err
	}
	stop()

	results, err := s.check(ctx, p, expected)
	if err != nil {
		return err
	}
	results = append(results, result{
		fmt.Sprintf("%d old events, replayed at the end, changed nothing", len(replays)),
		equal("tables", after, before),
	})
	return s.report(ctx, p, expected, results, out)
}

// settle waits until all that was accepted has been handled, and all that follows from it: of so many events at least. An event
// is handled when its claim is there, and a delivery when the middleware has told each consumer's outcome, or it is poisoned.
func (s *service) settle(ctx context.Context, p *provider, events int) error {
	accepted := int(p.accepted.Load())
	err := s.counts.wait(ctx, func() bool {
		return s.counts.handled("cards")+s.counts.handled("ledger")+s.counts.poisoned() >= 2*accepted &&
			s.counts.number("cards", once.Fresh, once.Stale) >= events &&
			s.counts.number("ledger", once.Fresh) >= events &&
			s.counts.number("mails", once.Fresh) >= s.counts.number("cards", once.Fresh)
	})
	if err != nil {
		return fmt.Errorf("not all deliveries were handled: %w", err)
	}
	return s.drained(ctx)
}

// drained waits until the outbox is empty. The relay deletes a message when the broker has it, a moment after the mail's sending.
func (s *service) drained(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	for {
		var left int
		if err := s.pool.QueryRow(ctx, "select count(*) from watermill_outbox").Scan(&left); err != nil {
			return fmt.Errorf("outbox: %w", err)
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("outbox: %d messages left: %w", left, context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// showProgress writes a line a second until it is told to stop.
func (s *service) showProgress(ctx context.Context, p *provider, steps []step, out io.Writer) (stop func()) {
	total := 0
	for _, step := range steps {
		total += len(step.deliveries)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				fmt.Fprintf(out, "deliveries %d of %d, handled: cards %d, ledger %d, e-mails %d\n",
					p.accepted.Load()+p.refused.Load(), total,
					s.counts.handled("cards"), s.counts.handled("ledger"), s.counts.handled("mails"))
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
