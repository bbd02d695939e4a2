package journal

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const renewSQL = `update @table
set lease_until = clock_timestamp() + $4::bigint * interval '1 microsecond'
where consumer = $1::text
  and key = $2::text
  and token = $3::bigint
  and state = 'started'`

// lease is renewed until it is stopped or lost. Its context ends when it is lost, and also, by the clock of this process, before
// it can run out unrenewed.
type lease struct {
	journal *Journal
	owner   owner
	ctx     context.Context
	lose    context.CancelCauseFunc
	ending  chan struct{}
	ended   chan struct{}
	stop    func() // ends the renewals and waits for the last one

	mu    sync.Mutex
	until time.Time // it is held up to here at least: measured from before the statement was sent
}

// startLease renews the lease that the owner got by a statement sent at began or later.
func (j *Journal) startLease(ctx context.Context, o owner, began time.Time) *lease {
	l := &lease{journal: j, owner: o, ending: make(chan struct{}), ended: make(chan struct{}), until: began.Add(j.config.Lease)}
	l.ctx, l.lose = context.WithCancelCause(ctx)
	l.stop = sync.OnceFunc(func() {
		close(l.ending)
		<-l.ended
		l.lose(context.Canceled) // which does nothing where it was lost
	})
	// The call may go on after the caller's context has ended; so does its lease.
	go l.renewing(context.WithoutCancel(ctx))
	return l
}

// A lease is renewed at each third of it, and after a failure five times as often. The call is told to end when a tenth is left.
func (l *lease) renewing(ctx context.Context) {
	defer close(l.ended)
	third := l.journal.config.Lease / 3
	next := l.lastCall().Add(l.journal.config.Lease/10 - l.journal.config.Lease + third)
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	for {
		select {
		case <-l.ending:
			return
		case <-timer.C:
		}
		now := time.Now()
		if !now.Before(l.lastCall()) {
			l.lose(ErrLeaseLost)
			return
		}
		if !now.Before(next) {
			held, err := l.renew(ctx, now.Add(third))
			switch {
			case err != nil:
				next = time.Now().Add(third / 5)
			case !held:
				l.lose(ErrLeaseLost)
				return
			default:
				l.renewed(now)
				next = now.Add(third)
			}
		}
		timer.Reset(max(0, min(time.Until(next), time.Until(l.lastCall()))))
	}
}

// renew tells whether the row is still the owner's. A lease that ran out and was not taken over may be renewed.
func (l *lease) renew(ctx context.Context, deadline time.Time) (held bool, err error) {
	if last := l.lastCall(); last.Before(deadline) {
		deadline = last
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	j, o := l.journal, l.owner
	_, err = j.use(ctx, func(conn *pgxpool.Conn) error {
		tag, err := conn.Exec(ctx, j.sql.renew, o.Consumer, o.Key, o.token, j.config.Lease.Microseconds())
		held = err == nil && tag.RowsAffected() == 1
		return err
	})
	return held, err
}

func (l *lease) renewed(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = at.Add(l.journal.config.Lease)
}

// lastCall is when the call is told to end.
func (l *lease) lastCall() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until.Add(-l.journal.config.Lease / 10)
}

// left is how long to try to store an outcome: what is left of the lease, and a third of it at least, since the token shows whether
// it is too late.
func (l *lease) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(time.Until(l.until), l.journal.config.Lease/3)
}

// lost tells whether the call was told to end for want of the lease.
func (l *lease) lost() bool { return context.Cause(l.ctx) == ErrLeaseLost }
