package outbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// delivery is what the relay knows beyond what the table says. It outlives sessions. Its loop talks to PostgreSQL, one
// errand at a time; workers talk to the broker meanwhile.
type delivery struct {
	relay    *Relay
	running  context.Context // of Run
	ctx      context.Context // of the messages: it lasts until the time to close is up
	batches  BatchPublisher  // nil where the broker takes one message at a time
	wake     <-chan struct{}
	progress chan struct{} // from the workers to the loop
	workers  sync.WaitGroup

	mu       sync.Mutex
	active   int // workers
	calls    map[*call]struct{}
	standIns int  // workers beyond those of the config, for as many that hang
	stoodFor int  // retries that hang and have such a worker in their place
	allStuck bool // all hang, and it was said
	lanes    lanes
	floor    floor
	troubles troubles
	topics   map[string]*topic   // that fail
	aside    map[string]aside    // keys whose messages stay in the table while their topic fails
	hidden   map[string]*pending // old rows, by the keys of those that have their offsets now
	shards   map[int]bool        // held; true: to be given back as soon as nothing of it is in memory
	lease    lease
	closing  bool

	taken    []*pending // by the broker, and still in the table
	settling []*pending // those that the trip under way deletes
	notes    []note
	passed   passed

	accepted uint64    // messages that the broker has taken
	inARow   int       // failures since it last took one
	unparked int       // messages that had trouble and are tried again
	retried  bool      // what was given to the broker last had had trouble
	clogged  time.Time // since when memory is full of what cannot be sent

	limit       int  // of a page
	mean        int  // bytes of payload of the rows that came last
	retryMean   int  // likewise, of those that were to be tried again
	more        bool // the last page was full
	asked       bool // somebody has said that there is something
	pause       time.Duration
	nextPoll    time.Time
	nextFlush   time.Time
	nextBalance time.Time
	nextReload  time.Time
}

func newDelivery(running, work context.Context, r *Relay, wake <-chan struct{}) *delivery {
	d := &delivery{
		relay:    r,
		running:  running,
		ctx:      work,
		wake:     wake,
		progress: make(chan struct{}, 1),
		calls:    make(map[*call]struct{}),
		lanes:    newLanes(),
		floor:    newFloor(),
		troubles: newTroubles(),
		passed:   newPassed(),
	}
	d.batches, _ = r.broker.(BatchPublisher)
	return d
}

const (
	balanceInterval = 500 * time.Millisecond
	flushInterval   = 10 * time.Millisecond // how long a message that was sent stays in the table, for company
	firstPause      = 5 * time.Millisecond  // between polls, when there has just been something
)

// begin forgets what holds for one session only.
func (d *delivery) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lanes.drop(every)
	d.taken = slices.Concat(d.passed.rows, d.settling, d.taken)
	d.settling, d.passed = nil, newPassed()
	d.floor.reset()
	d.doubtOffsets()
	d.troubles, d.unparked = newTroubles(), 0
	for name := range d.topics {
		d.lanes.releaseTopic(name)
	}
	d.topics, d.aside, d.inARow = make(map[string]*topic), make(map[string]aside), 0
	d.notes, d.hidden = nil, make(map[string]*pending)
	d.shards = make(map[int]bool)
	d.lease = lease{}
	now := time.Now()
	d.limit, d.more, d.asked, d.pause = min(firstPage, d.pageSize()), false, true, firstPause
	d.nextPoll, d.nextBalance, d.nextReload = now, now, now
}

func every(int) bool { return true }

// end stops the workers from sending more: without a session there are no locks.
func (d *delivery) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lease = lease{}
	d.lanes.drop(every)
}

// run sends until ctx ends or the session is lost.
func (d *delivery) run(ctx, work context.Context, s *session) error {
	d.begin()
	defer d.end()
	last, release := outlive(work, lastWordsTime)
	defer release()
	results := make(chan *errand, 1)
	underway := false
	// Nothing may be left running on the session.
	defer func() {
		if underway {
			<-results
		}
	}()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	ended, timeUp := ctx.Done(), work.Done()
	for {
		if !underway {
			e, wait, done := d.plan(time.Now())
			if done {
				return nil
			}
			if e != nil {
				underway = true
				go func() {
					e.run(last, s)
					results <- e
				}()
			} else {
				timer.Reset(wait)
			}
		}
		select {
		case <-timer.C:
		case <-d.progress:
		case <-d.wake:
			d.mu.Lock()
			d.asked, d.pause = true, firstPause
			d.mu.Unlock()
		case e := <-results:
			underway = false
			if err := d.finish(e, time.Now()); err != nil {
				return err
			}
		case <-ended:
			ended = nil
			d.mu.Lock()
			d.closing = true
			d.lanes.drop(every)
			d.mu.Unlock()
		case <-timeUp:
			if underway {
				e := <-results
				underway = false
				if err := d.finish(e, time.Now()); err != nil {
					return errors.Join(d.stuck(), err)
				}
			}
			if e, _, _ := d.plan(time.Now()); e != nil && e.trip != nil {
				e.run(last, s)
				if err := d.finish(e, time.Now()); err != nil {
					return errors.Join(d.stuck(), err)
				}
			}
			return d.stuck()
		}
	}
}

// stuck is the error where the time to close is up: it may be PostgreSQL that did not answer.
func (d *delivery) stuck() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lanes.sending == 0 {
		return nil
	}
	return ErrCloseTimeout
}

func (d *delivery) waitFor(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return d.wait(ctx)
}

// wait waits for what the broker still has in hand when there is no session.
func (d *delivery) wait(work context.Context) error {
	done := make(chan struct{})
	go func() {
		d.workers.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-work.Done():
		return d.stuck()
	}
}

// errand is one thing to do with PostgreSQL: a trip, or a look at who has which shards.
type errand struct {
	trip *trip

	holding []int // shards that are held and stay
	leave   []int // and those to give back
	reload  bool

	began    time.Time
	taken    []int
	beyond   int
	troubles []*trouble
	took     time.Duration
	err      error
}

func (e *errand) run(ctx context.Context, s *session) {
	e.began = time.Now()
	if e.trip != nil {
		e.err = s.do(ctx, e.trip)
		return
	}
	e.taken, e.beyond, e.err = s.balance(ctx, len(e.holding), e.leave)
	shards := e.taken
	if e.reload {
		shards = append(append([]int{}, e.holding...), e.taken...)
	}
	if e.err == nil && len(shards) > 0 {
		started := time.Now()
		e.troubles, e.err = s.readTroubles(ctx, shards)
		e.took = time.Since(started)
	}
}

// plan decides what to do next: an errand, or to wait.
func (d *delivery) plan(now time.Time) (e *errand, wait time.Duration, done bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing && d.lanes.sending == 0 && len(d.taken) == 0 && len(d.notes) == 0 && !d.passed.any() {
		return nil, 0, true
	}
	d.watchCalls(now)
	d.start(now)
	if !d.closing && (!now.Before(d.nextBalance) || d.drained()) {
		return d.planBalance(now), 0, false
	}
	t := &trip{}
	// Also while closing: the server would end a session that is silent, and what the broker takes later would stay.
	wait = d.lease.at.Add(beat).Sub(now)
	if !d.closing {
		wait = min(wait, d.nextBalance.Sub(now))
		d.recover()
		d.unclog(now, &wait)
	}
	if d.passed.any() {
		wait = min(wait, d.passed.until.Sub(now))
	}
	wanted := wait <= 0

	if len(d.taken) > 0 {
		idle := d.lanes.sending == 0 && d.active == 0
		if flush := d.nextFlush.Sub(now); idle || flush <= 0 || len(d.taken) >= d.settleAt() || d.closing {
			wanted = true
		} else {
			wait = min(wait, flush)
		}
	}
	wanted = wanted || len(d.notes) > 0
	if !d.closing {
		if t.due = d.dueNow(now, &wait); len(t.due) > 0 {
			t.dueBytes = d.retryRoom()
			wanted = true
		}
		if t.refills = d.refills(); len(t.refills) > 0 {
			wanted = true
		}
		if d.mayFetch() {
			poll := d.nextPoll.Sub(now)
			if t.fetch = d.more || d.asked || poll <= 0; t.fetch {
				wanted = true
			} else {
				wait = min(wait, poll)
			}
		}
		if probe, any := d.nextProbe(); any {
			wait = min(wait, max(probe.Sub(now), time.Millisecond))
		}
	}
	if !wanted {
		return nil, max(wait, 0), false
	}
	if t.fetch {
		d.asked = false
	}
	d.load(t, now)
	return &errand{trip: t}, 0, false
}

func (d *delivery) settleAt() int { return max(1, d.relay.config.BatchSize/4) }

// mayFetch tells whether there is room for a page.
func (d *delivery) mayFetch() bool {
	if d.full() {
		return false
	}
	for _, leaving := range d.shards {
		if !leaving {
			return true
		}
	}
	return false
}

// load puts on a trip what there is to tell and to ask.
func (d *delivery) load(t *trip, now time.Time) {
	t.sent, d.taken = d.taken, nil
	t.notes, d.notes = d.notes, nil
	d.retryPassed(t, now)
	t.sentYet = d.lockedWhenSent(t)
	d.settling = t.sent
	for _, row := range t.sent {
		if trouble := d.troubles.byOffset[row.offset]; trouble != nil && trouble.uuid == row.uuid {
			d.forget(trouble)
		}
	}
	if !t.fetch {
		return
	}
	d.unhide()
	t.floor = d.floor.high
	t.bytes = min(pageBytes, memoryBytes-d.lanes.bytes)
	t.limit = min(d.limit, fit(t.bytes, d.mean))
	gone := make(map[int64]bool, len(t.sent))
	for _, row := range t.sent {
		gone[row.offset] = true
	}
	t.known = make([]int64, 0, 64)
	for offset, row := range d.lanes.known {
		if offset > t.floor && !gone[offset] && !row.old {
			t.known = append(t.known, offset)
		}
	}
	// A person may have one tried again, and the table knows it first: what is left out for it now must not be passed by what is
	// behind it.
	t.troubled = len(d.troubles.byOffset) > 0 || d.relay.config.KeepSent
	for key, lane := range d.lanes.cut {
		t.cutKeys, t.rests = append(t.cutKeys, key), append(t.rests, lane.rest)
	}
	for key, old := range d.hidden {
		t.cutKeys, t.rests = append(t.cutKeys, key), append(t.rests, old.offset)
	}
	for shard, leaving := range d.shards {
		if !leaving {
			t.shards = append(t.shards, shard)
		}
	}
	if len(t.shards) == d.relay.config.Shards {
		t.shards = nil
	}
}

// finish takes in what an errand has brought.
func (d *delivery) finish(e *errand, now time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.err != nil {
		if e.trip != nil && outOfTime(e.err) {
			d.suspectSize(e.trip)
		}
		return e.err
	}
	if e.trip == nil {
		d.finishBalance(e, now)
		return nil
	}
	t := e.trip
	d.lease = lease{t.began}
	d.settling = nil
	d.finishPassed(t, now)
	for _, row := range t.sent {
		if d.lanes.known[row.offset] == row {
			delete(d.lanes.known, row.offset)
		}
	}
	if t.fetch {
		d.finishFetch(t, now)
	}
	d.finishRefills(t)
	// What follows lowers the floor, and lets keys go on whose rows this page may lack.
	d.passOver(t)
	d.finishDue(t)
	d.finishNotes(t)
	for _, row := range t.sent {
		// The offset may have become another message's, or the table has kept back what is behind it.
		if row.old || row.passed {
			d.floor.back(row.offset - 1)
			d.asked = true
		}
	}
	d.start(now)
	return nil
}

func (d *delivery) finishFetch(t *trip, now time.Time) {
	d.learnSize(t)
	if d.floor.restarted(t.page.file) {
		d.startAnew(now)
		return
	}
	if !d.floor.observe(t.page, now) {
		d.asked = true
		return
	}
	d.more = t.full()
	if d.closing {
		return
	}
	for _, row := range t.rows {
		leaving, held := d.shards[row.shard]
		if known := d.lanes.known[row.offset]; known != nil {
			d.hides(known, row)
		} else if held && !leaving && !d.mustWait(row) {
			d.lanes.admit(row)
		}
	}
	if len(t.rows) > 0 {
		d.pause = firstPause
	}
	d.nextPoll = now.Add(d.pause)
	d.pause = min(2*d.pause, d.relay.config.PollInterval)
}

// poke has the loop look.
func (d *delivery) poke() {
	select {
	case d.progress <- struct{}{}:
	default:
	}
}
