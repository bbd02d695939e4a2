package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// notifyInterval is the least time between two notifications.
const notifyInterval = 5 * time.Millisecond

// Notify tells relays in other processes that this Publisher's messages have been committed, as Wake tells those of this
// one. It blocks until ctx ends, and returns nil then. It sends NOTIFY in transactions of its own, one for all that has been
// committed within 5 ms: in the transactions that write the messages, NOTIFY would have them commit one after the other. It is
// a hint; what it misses while PostgreSQL is away, relays find by polling.
func (p *Publisher) Notify(ctx context.Context, pool *pgxpool.Pool) error {
	if pool == nil {
		return errors.New("outbox: notify: pool is nil")
	}
	b := newBell()
	defer p.wake.add(b)()
	failures := backoff{first: firstBackoff}
	for {
		select {
		case <-b.rung:
		case <-ctx.Done():
			return nil
		}
		wait := notifyInterval
		if err := notify(ctx, pool, p.config.Topic); err != nil {
			wait = failures.next()
			b.ring()
		} else {
			failures.reset()
		}
		sleep(ctx, wait)
	}
}

func notify(ctx context.Context, pool *pgxpool.Pool, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	_, err := pool.Exec(ctx, "select pg_notify($1, '')", tableNameOf(topic))
	return err
}

// quietFor is how long a listening connection may be silent before it is asked whether it is still there.
const quietFor = 30 * time.Second

// listen rings for each notification, and when there may have been some that it has missed.
func (r *Relay) listen(ctx context.Context, b *bell) {
	failures := backoff{first: firstBackoff}
	for ctx.Err() == nil {
		err := r.listenOnce(ctx, b, &failures)
		if ctx.Err() != nil {
			return
		}
		delay := failures.next()
		r.logger.Debug("Outbox relay cannot listen, polling", watermill.LogFields{"err": err.Error(), "wait": delay})
		sleep(ctx, delay)
	}
}

func (r *Relay) listenOnce(ctx context.Context, b *bell, failures *backoff) error {
	pooled, err := r.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	conn := pooled.Hijack()
	defer func() {
		ctx, cancel := lastWords(ctx)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	// A name with other than letters in it has to be quoted, as the table's.
	if _, err := conn.Exec(ctx, "listen "+tableOf(r.config.Topic), pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	failures.reset()
	for {
		b.ring()
		if err := notified(ctx, conn); err != nil {
			return err
		}
	}
}

// notified returns nil after a notification.
func notified(ctx context.Context, conn *pgx.Conn) error {
	for {
		quiet, cancel := context.WithTimeout(ctx, quietFor)
		_, err := conn.WaitForNotification(quiet)
		cancel()
		if err == nil || ctx.Err() != nil || conn.IsClosed() {
			return err
		}
		answer, cancel := context.WithTimeout(ctx, statementTimeout)
		err = conn.Ping(answer)
		cancel()
		if err != nil {
			return err
		}
	}
}
