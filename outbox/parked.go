package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is a *pgxpool.Pool, a *pgx.Conn or a pgx.Tx.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Parked is a message that a relay has given up on. It stays in the outbox until it is retried or discarded, and unless
// RelayConfig.PassParked is set, the messages of its key wait behind it.
type Parked struct {
	Offset    int64 // names it in the outbox
	Topic     string
	Key       string
	UUID      string
	Payload   []byte
	Metadata  []byte // the JSON as it stands in the table: it may be what could not be read
	Attempts  int    // those that count, see RelayConfig.MaxAttempts
	LastError string
	CreatedAt time.Time
	ParkedAt  time.Time
}

// Message is the message as it would be sent, without SequenceKey.
func (p Parked) Message() (*message.Message, error) {
	row := pending{topic: p.Topic, uuid: p.UUID, payload: p.Payload, metadata: p.Metadata}
	return row.decode()
}

// ListParked gives parked messages in the order of their offsets, at most limit, of offsets greater than after: 0 for the
// first ones, then the offset of the last one seen.
func (c Config) ListParked(ctx context.Context, db DB, after int64, limit int) ([]Parked, error) {
	if limit < 1 {
		return nil, errors.New("outbox: list parked: the limit is not positive")
	}
	rows, err := db.Query(ctx, `select "offset", topic, key, uuid, payload, metadata, attempts, coalesce(last_error, ''), created_at, parked_at
from `+c.Table()+`
where next_attempt_at is not null
  and parked_at is not null
  and "offset" > $1
order by "offset"
limit $2`, after, limit)
	if err != nil {
		return nil, fmt.Errorf("outbox: list parked: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Parked])
	if err != nil {
		return nil, fmt.Errorf("outbox: list parked: %w", err)
	}
	return all, nil
}

// CountParked tells how many messages are parked, and how many wait behind them in their keys.
func (c Config) CountParked(ctx context.Context, db DB) (parked, behind int64, err error) {
	rows, err := db.Query(ctx, `select count(*) filter (where row.parked_at is not null), count(*) filter (where row.parked_at is null)
from (
    select key, min("offset") as "offset"
    from `+c.Table()+`
    where next_attempt_at is not null
      and parked_at is not null
    group by key
) as first
join `+c.Table()+` as row on row.key = first.key and row."offset" >= first."offset"
where row.sent_at is null`)
	if err == nil {
		var counts [2]int64
		counts, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (counts [2]int64, err error) {
			err = row.Scan(&counts[0], &counts[1])
			return counts, err
		})
		parked, behind = counts[0], counts[1]
	}
	if err != nil {
		return 0, 0, fmt.Errorf("outbox: count parked: %w", err)
	}
	return parked, behind, nil
}

// RetryParked has parked messages tried again, within a second or so, with their attempts counted anew. It gives how many
// there were: offsets of messages that are not parked, or no longer, are left out.
func (c Config) RetryParked(ctx context.Context, db DB, offsets ...int64) (int64, error) {
	tag, err := db.Exec(ctx, `update `+c.Table()+`
set parked_at = null,
    attempts = 0,
    next_attempt_at = clock_timestamp()
where "offset" = any ($1::bigint[])
  and parked_at is not null
  and sent_at is null`, offsets)
	if err != nil {
		return 0, fmt.Errorf("outbox: retry parked: %w", err)
	}
	return tag.RowsAffected(), nil
}

// DiscardParked deletes parked messages, unsent, and lets their keys go on. It gives how many there were.
func (c Config) DiscardParked(ctx context.Context, db DB, offsets ...int64) (int64, error) {
	tag, err := db.Exec(ctx, `delete from `+c.Table()+`
where "offset" = any ($1::bigint[])
  and parked_at is not null
  and sent_at is null`, offsets)
	if err != nil {
		return 0, fmt.Errorf("outbox: discard parked: %w", err)
	}
	return tag.RowsAffected(), nil
}
