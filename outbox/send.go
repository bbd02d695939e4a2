package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// start has workers send what is ready. They end by themselves.
func (d *delivery) start(now time.Time) {
	for ready := d.ready(now); ready > 0 && d.active < d.maxActive(); ready-- {
		d.active++
		d.workers.Go(d.work)
	}
}

func (d *delivery) maxActive() int {
	if d.batches != nil {
		return 1
	}
	return d.relay.config.Concurrency + d.standIns
}

// ready is how many workers would find something to do.
func (d *delivery) ready(now time.Time) int {
	if !d.maySend(now) {
		return 0
	}
	retries := d.retries()
	ready := len(d.lanes.fresh) + max(0, min(len(d.lanes.retry), retries))
	if retries > 0 && d.probeDue(now) != "" {
		ready++
	}
	return min(ready, d.room())
}

// retries is how many more messages that have had trouble may be given to the broker. They may take long to fail, so
// some workers are always left to the others. Those that hang do not count where there is a worker in their place.
func (d *delivery) retries() int {
	workers := d.relay.config.Concurrency
	switch {
	case d.batches != nil:
		return d.relay.config.BatchSize
	case len(d.lanes.fresh) > 0:
		workers /= 4
	default:
		workers -= workers / 4
	}
	return max(1, workers) - d.lanes.retrying + min(d.stoodFor, d.lanes.retrying)
}

// room is how many messages may be given to the broker. Those that it has, or has taken and that are not yet deleted,
// are never more than BatchSize, for they are what a crash would repeat.
func (d *delivery) room() int {
	return d.relay.config.BatchSize - d.lanes.sending - len(d.taken) - len(d.settling) - len(d.passed.rows)
}

func (d *delivery) work() {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := new(call)
	d.calls[c] = struct{}{}
	defer func() {
		delete(d.calls, c)
		d.active--
		d.poke()
	}()
	for d.active <= d.maxActive() {
		c.began = time.Now()
		if c.rows = d.next(c.rows[:0], c.began); len(c.rows) == 0 {
			break
		}
		d.give(c.rows)
	}
}

// errExited is the fault of a broker that ends its caller's goroutine, as a fake one does that calls t.FailNow.
var errExited = errors.New("broker's Publish ended the goroutine")

// give hands rows to the broker, unlocked meanwhile, and takes in its answers.
func (d *delivery) give(rows []*pending) {
	var faults []error
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		if faults == nil {
			faults = slices.Repeat([]error{errExited}, len(rows))
		}
		d.returned(rows, faults, time.Now())
	}()
	faults = d.publish(rows)
}

func (d *delivery) maySend(now time.Time) bool {
	return !d.closing && d.running.Err() == nil && d.lease.holds(now)
}

// next takes what is to be sent now: one message, or a batch.
func (d *delivery) next(rows []*pending, now time.Time) []*pending {
	config := d.relay.config
	limit := 1
	if d.batches != nil {
		limit = max(1, config.BatchSize/2)
	}
	if limit = min(limit, d.room()); limit <= 0 || !d.maySend(now) {
		return rows
	}
	if d.retries() > 0 && !d.freshTurn() {
		rows = d.probe(rows, now)
	}
	retries := d.retries()
	if d.freshTurn() {
		retries = 0
	}
	rows = d.lanes.next(rows, limit, retries, limit)
	d.retried = len(rows) > 0 && (rows[0].trouble != nil || rows[0].probe)
	for _, row := range rows {
		row.began = d.accepted
	}
	return rows
}

// freshTurn tells whether a message that has had no trouble is next: one worker alone may find others always due.
func (d *delivery) freshTurn() bool {
	return d.batches == nil && d.retried && len(d.lanes.fresh) > 0
}

// returned takes in the broker's answers.
func (d *delivery) returned(rows []*pending, faults []error, now time.Time) {
	for i, row := range rows {
		lane := d.lanes.returned(row)
		row.payload, row.metadata = nil, nil
		if topic := d.topics[row.topic]; topic != nil && row.probe {
			topic.probing = false
		}
		switch fault := faults[i]; {
		case fault == nil:
			d.took(row, now)
		case row.old:
			delete(d.lanes.known, row.offset) // where the table still has it, it is read again
		case lane.failed:
			delete(d.lanes.known, row.offset) // it was not tried; it is read again when its turn comes
		default:
			lane.failed = true
			d.troubles.dropped(d.lanes.clear(lane, row.offset), now)
			d.failed(row, fault, now)
		}
	}
	short := false
	for _, row := range rows {
		if lane := d.lanes.byKey[row.key]; lane != nil {
			d.lanes.goOn(lane)
			short = short || d.short(lane)
		}
	}
	if short || len(d.notes) > 0 || len(d.taken) <= len(rows) || len(d.taken) >= d.settleAt() || d.more && !d.full() {
		d.poke()
	}
}

// publish gives an error for each of the rows.
func (d *delivery) publish(rows []*pending) []error {
	if d.batches != nil {
		return d.publishBatch(rows)
	}
	msg, err := rows[0].message(d.ctx)
	if err == nil {
		err = publish(d.relay.broker, rows[0].topic, msg)
	}
	return []error{err}
}

func publish(broker message.Publisher, topic string, msg *message.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("broker's Publish panicked: %v", p)
		}
	}()
	return usable(broker.Publish(topic, msg))
}

// usable gives an error whose methods do not panic, as those of a nil pointer do.
func usable(fault error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("broker's error panicked: %v", p)
		}
	}()
	if fault != nil {
		_ = fault.Error()
		_ = permanent(fault)
	}
	return fault
}

var errBehind = errors.New("is behind a message of its key that failed")

func (d *delivery) publishBatch(rows []*pending) []error {
	faults := make([]error, len(rows))
	batch := make([]Outgoing, 0, len(rows))
	places := make([]int, 0, len(rows))
	var unreadable map[string]bool
	for i, row := range rows {
		if unreadable[row.key] {
			faults[i] = errBehind
			continue
		}
		msg, err := row.message(d.ctx)
		if err != nil {
			if unreadable == nil {
				unreadable = make(map[string]bool)
			}
			unreadable[row.key] = true
			faults[i] = err
			continue
		}
		batch = append(batch, Outgoing{Topic: row.topic, Key: row.key, Message: msg})
		places = append(places, i)
	}
	if len(batch) == 0 {
		return faults
	}
	results, err := publishBatch(d.ctx, d.batches, batch)
	for n, i := range places {
		switch {
		case err != nil:
			faults[i] = err
		default:
			faults[i] = usable(results[n])
		}
	}
	return faults
}

func publishBatch(ctx context.Context, broker BatchPublisher, batch []Outgoing) (results []error, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("broker's PublishBatch panicked: %v", p)
		}
	}()
	results = broker.PublishBatch(ctx, batch)
	if len(results) != len(batch) {
		// Nobody knows which messages were taken: all are sent again.
		return nil, fmt.Errorf("broker's PublishBatch gave %d results for %d messages", len(results), len(batch))
	}
	return results, nil
}

// unreadableError is about a row that no attempt will send.
type unreadableError struct{ err error }

func (e *unreadableError) Error() string { return e.err.Error() }
func (e *unreadableError) Unwrap() error { return e.err }

func (row *pending) message(ctx context.Context) (*message.Message, error) {
	msg, err := row.decode()
	if err != nil {
		return nil, err
	}
	msg.Metadata[SequenceKey] = strconv.FormatInt(row.offset, 10)
	msg.SetContext(ctx)
	return msg, nil
}

func (row *pending) decode() (*message.Message, error) {
	msg := message.NewMessage(row.uuid, row.payload)
	if err := json.Unmarshal(row.metadata, &msg.Metadata); err != nil {
		return nil, &unreadableError{fmt.Errorf("decode metadata: %w", err)}
	}
	if row.topic == "" {
		return nil, &unreadableError{errors.New("the topic is empty")}
	}
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata, 1)
	}
	return msg, nil
}
