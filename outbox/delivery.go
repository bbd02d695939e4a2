package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// delivery is what the relay knows beyond what the table says. It outlives sessions.
type delivery struct {
	relay *Relay
	wake  <-chan struct{}

	// sent is what the broker has taken and is still in the table.
	sent []taken
	// held are the keys whose first message the broker did not take: nothing of the key may overtake it.
	held map[string]*hold
	// failed counts failures since the broker last took a message.
	failed int
}

type taken struct {
	offset int64
	uuid   string
}

type hold struct {
	backoff backoff
	until   time.Time
}

// maxHeld bounds the keys that are left alone at the same time, and maxFailed the failures in a row before the relay
// pauses: when the broker is down, every key fails.
const (
	maxHeld   = 10_000
	maxFailed = 100
)

func newDelivery(r *Relay, wake <-chan struct{}) *delivery {
	return &delivery{relay: r, wake: wake, held: make(map[string]*hold)}
}

// run sends until ctx ends or the session is lost. No transaction is open while the broker is at it.
func (d *delivery) run(ctx, work context.Context, s *session) error {
	for ctx.Err() == nil {
		more, err := d.pass(ctx, work, s)
		if err != nil {
			return err
		}
		if !more {
			d.wait(ctx)
		}
	}
	return nil
}

// pass sends one batch, and tells whether there may be more.
func (d *delivery) pass(ctx, work context.Context, s *session) (more bool, err error) {
	if err := d.settle(work, s); err != nil {
		return false, err
	}
	held := d.heldKeys(time.Now())
	if len(held) >= maxHeld {
		return false, nil
	}
	batch, err := s.fetch(work, held, d.relay.config.BatchSize)
	if err != nil {
		return false, err
	}
	if err := d.publish(ctx, work, batch); err != nil {
		// The time is up, but what was taken before need not be sent again.
		last, cancel := lastWords(work)
		defer cancel()
		return false, errors.Join(err, d.settle(last, s))
	}
	err = d.settle(work, s)
	return len(batch) == d.relay.config.BatchSize && d.failed < maxFailed, err
}

// settle deletes what was sent. What could not be deleted is remembered, and not sent again.
func (d *delivery) settle(ctx context.Context, s *session) error {
	if len(d.sent) == 0 {
		return nil
	}
	if err := s.remove(ctx, d.sent); err != nil {
		return err
	}
	d.sent = d.sent[:0]
	return nil
}

// publish sends the rows one after the other, as long as ctx lasts.
func (d *delivery) publish(ctx, work context.Context, batch []pending) error {
	failedHere := make(map[string]bool)
	for i := range batch {
		row := &batch[i]
		if ctx.Err() != nil {
			return nil
		}
		if failedHere[row.key] {
			continue
		}
		err, returned := d.send(work, row)
		if !returned {
			return ErrCloseTimeout
		}
		if err != nil {
			failedHere[row.key] = true
			d.hold(row, err)
			continue
		}
		d.failed = 0
		d.sent = append(d.sent, taken{row.offset, row.uuid})
		delete(d.held, row.key)
	}
	return nil
}

// send waits for the broker, which has no context to be told to stop, as long as work lasts.
func (d *delivery) send(work context.Context, row *pending) (err error, returned bool) {
	msg, err := row.message(work)
	if err != nil {
		return err, true
	}
	result := make(chan error, 1)
	go func() { result <- publish(d.relay.broker, row.topic, msg) }()
	select {
	case err := <-result:
		return err, true
	case <-work.Done():
		return nil, false
	}
}

func publish(broker message.Publisher, topic string, msg *message.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("broker's Publish panicked: %v", p)
		}
	}()
	return broker.Publish(topic, msg)
}

func (row *pending) message(ctx context.Context) (*message.Message, error) {
	msg := message.NewMessage(row.uuid, row.payload)
	if err := json.Unmarshal(row.metadata, &msg.Metadata); err != nil {
		return nil, fmt.Errorf("decode metadata: %w", err)
	}
	msg.SetContext(ctx)
	return msg, nil
}

// hold leaves a key alone for a while.
func (d *delivery) hold(row *pending, err error) {
	d.failed++
	h := d.held[row.key]
	if h == nil {
		h = &hold{backoff: backoff{first: 100 * time.Millisecond}}
		d.held[row.key] = h
	}
	delay := h.backoff.next()
	h.until = time.Now().Add(delay)
	d.relay.logger.Error("Could not publish from outbox, the message's key waits", err, watermill.LogFields{
		"topic":        row.topic,
		"message_uuid": row.uuid,
		"offset":       row.offset,
		"wait":         delay,
	})
}

func (d *delivery) heldKeys(now time.Time) []string {
	keys := make([]string, 0, len(d.held))
	for key, h := range d.held {
		switch {
		case h.until.After(now):
			keys = append(keys, key)
		case now.Sub(h.until) > longestBackoff:
			delete(d.held, key) // its message has gone otherwise
		}
	}
	return keys
}

// wait lasts until there may be something to do: a signal, the end of a hold, or the next poll.
func (d *delivery) wait(ctx context.Context) {
	delay := d.relay.config.PollInterval
	for _, h := range d.held {
		if left := time.Until(h.until); left > 0 {
			delay = min(delay, left)
		}
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.wake:
	case <-ctx.Done():
	}
}
