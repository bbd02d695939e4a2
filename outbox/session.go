package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// statementTimeout bounds a statement of the relay: a dead network would else be noticed after many minutes only.
const statementTimeout = time.Minute

// session is the relay's own connection. Its locks are the session's: while its statements succeed they are held, and
// when it is lost they are free for the next relay.
type session struct {
	conn  *pgx.Conn
	topic string
	table string
}

// openSession takes a connection out of the pool, made with all the pool's hooks.
func openSession(ctx context.Context, pool *pgxpool.Pool, topic string) (*session, error) {
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("outbox: relay: connect: %w", err)
	}
	return &session{conn: pooled.Hijack(), topic: topic, table: tableOf(topic)}, nil
}

// close gives the locks back before it hangs up: the server may take its time to notice that.
func (s *session) close(ctx context.Context) {
	ctx, cancel := lastWords(ctx)
	defer cancel()
	if !s.conn.IsClosed() {
		_, _ = s.conn.Exec(ctx, "select pg_advisory_unlock_all()")
	}
	_ = s.conn.Close(ctx)
}

// lastWords gives the time for a statement after all time is up.
func lastWords(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}

// lead tells whether this session is the one to send: no other relay is, and no stock subscriber is in the middle of a
// batch. The locks stay.
func (s *session) lead(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	for _, lock := range []struct {
		try string
		id  int64
	}{
		{"select pg_try_advisory_lock($1)", relayLock(s.topic)},
		{"select pg_try_advisory_lock_shared($1)", readerLock(s.topic)},
	} {
		var mine bool
		if err := s.conn.QueryRow(ctx, lock.try, lock.id).Scan(&mine); err != nil {
			return false, fmt.Errorf("outbox: relay: lock: %w", err)
		}
		if !mine {
			_, err := s.conn.Exec(ctx, "select pg_advisory_unlock_all()")
			return false, err
		}
	}
	return true, nil
}

// pending is a row that waits to be sent.
type pending struct {
	offset   int64
	topic    string
	key      string
	uuid     string
	payload  []byte
	metadata []byte
}

// fetchSQL reads what is visible, in the order of the primary key, which it follows without a sort. Rows of one key
// become visible in the order of their offsets: their writers hold the key's lock from before the offset until after
// the commit. Columns are selected as they are: an expression under the name of one would be what "order by" means.
func fetchSQL(table string) string {
	return `select "offset", topic, key, uuid, payload, metadata
from ` + table + `
where parked_at is null
  and sent_at is null
  and key <> all ($1::text[])
order by "offset"
limit $2`
}

// fetch reads the next rows of all keys but held ones.
func (s *session) fetch(ctx context.Context, held []string, limit int) ([]pending, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := s.conn.Query(ctx, fetchSQL(s.table), held, limit)
	if err != nil {
		return nil, fmt.Errorf("outbox: relay: fetch: %w", err)
	}
	batch, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p pending, err error) {
		err = row.Scan(&p.offset, &p.topic, &p.key, &p.uuid, &p.payload, &p.metadata)
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: relay: fetch: %w", err)
	}
	return batch, nil
}

// remove deletes what the broker has taken. An offset alone does not name a message for ever: a standby that was behind
// when it took over gives the offsets that it has not seen to other messages.
func (s *session) remove(ctx context.Context, rows []taken) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	offsets, uuids := make([]int64, len(rows)), make([]string, len(rows))
	for i := range rows {
		offsets[i], uuids[i] = rows[i].offset, rows[i].uuid
	}
	if _, err := s.conn.Exec(ctx, removeSQL(s.table), offsets, uuids); err != nil {
		return fmt.Errorf("outbox: relay: delete: %w", err)
	}
	return nil
}

func removeSQL(table string) string {
	return `delete from ` + table + ` as row
using unnest($1::bigint[], $2::text[]) as taken ("offset", uuid)
where row."offset" = taken."offset"
  and row.uuid = taken.uuid`
}
