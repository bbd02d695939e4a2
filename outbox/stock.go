package outbox

import (
	stdsql "database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/internal/attempt"
)

var (
	_ sql.SchemaAdapter  = SchemaAdapter{}
	_ sql.OffsetsAdapter = OffsetsAdapter{}
)

// SchemaAdapter lets the Publisher and the Subscriber of watermill-sql work on an outbox, so that Watermill's forwarder
// can write to it and drain it: its topic is Config.Topic. Enveloped messages are stored as the Publisher of this
// package stores them, and rows come out as envelopes. It goes together with OffsetsAdapter.
//
// One Subscriber is at work at a time, whatever its consumer group, and none while a Relay is. A forwarded message is
// deleted.
type SchemaAdapter struct {
	// Key is as in Config.
	Key func(topic string, msg *message.Message) (string, error)

	// BatchSize is how many messages a Subscriber reads in one transaction. All of them are sent again where it ends
	// before they are acknowledged.
	// Defaults to 100.
	BatchSize int
}

// InsertQuery writes enveloped messages. It locks their keys until the transaction ends, as PublishTx does.
func (a SchemaAdapter) InsertQuery(topic string, msgs message.Messages) (sql.Query, error) {
	if len(msgs) == 0 {
		// watermill-sql sends a query in any case.
		return sql.Query{Query: "select"}, nil
	}
	config := Config{Topic: topic, Key: a.Key}
	config.setDefaults()
	builder := newRows(config)
	rows := make([]attempt.Row, len(msgs))
	for i, msg := range msgs {
		destination, inner, err := openEnvelope(msg)
		if err != nil {
			return sql.Query{}, fmt.Errorf("%w: UUID %.64q for topic %.64q: payload %w", ErrInvalidMessage, msg.UUID, topic, err)
		}
		inner.SetContext(msg.Context())
		if rows[i], err = builder.of(destination, inner, nil); err != nil {
			return sql.Query{}, err
		}
	}
	statement := attempt.InsertOne(rows)
	return sql.Query{Query: statement.SQL, Args: statement.Args}, nil
}

// selectFrom gives no row to a second reader. The lock alone would not do: the statement's snapshot is older than the
// lock, and may still show what the reader before has just deleted; "for update" finds out.
const selectFrom = `with turn as materialized (
    select pg_try_advisory_xact_lock(@lock # @name::regclass::oid::bigint) as mine
)
select "offset", topic, uuid, payload, metadata
from @table
where (select mine from turn)
  and parked_at is null
  and sent_at is null
order by "offset"
limit @limit
for update`

// SelectQuery reads in the order of the offsets.
func (a SchemaAdapter) SelectQuery(topic string, _ string, offsets sql.OffsetsAdapter) sql.Query {
	if _, ours := offsets.(interface{ deletes() }); !ours {
		return refusal("outbox.SchemaAdapter needs outbox.OffsetsAdapter: no other deletes what was sent")
	}
	size := a.BatchSize
	if size <= 0 {
		size = 100
	}
	return sql.Query{Query: strings.NewReplacer(
		"@lock", strconv.FormatInt(readerLock(topic), 10),
		"@name", "'"+strings.ReplaceAll(tableOf(topic), "'", "''")+"'",
		"@table", tableOf(topic),
		"@limit", strconv.Itoa(size),
	).Replace(selectFrom)}
}

// UnmarshalMessage gives a row as an envelope, under the message's own UUID.
func (SchemaAdapter) UnmarshalMessage(row sql.Scanner) (sql.Row, error) {
	var (
		r           sql.Row
		topic, uuid stdsql.NullString
	)
	// An error here would drop the batch, and again at every poll: so nothing but the connection may fail.
	if err := row.Scan(&r.Offset, &topic, &uuid, &r.Payload, &r.Metadata); err != nil {
		return sql.Row{}, fmt.Errorf("outbox: read row: %w", err)
	}
	r.UUID = []byte(uuid.String)
	r.Msg = message.NewMessage(uuid.String, seal(topic.String, uuid.String, r.Payload, r.Metadata))
	return r, nil
}

// SchemaInitializingQueries creates the outbox's table.
func (SchemaAdapter) SchemaInitializingQueries(topic string) []sql.Query {
	return []sql.Query{{Query: Config{Topic: topic}.Schema()}}
}

// SubscribeIsolationLevel keeps the rows that are committed while a batch is being sent out of sight of the statement
// that deletes the batch.
func (SchemaAdapter) SubscribeIsolationLevel() stdsql.IsolationLevel {
	return stdsql.LevelRepeatableRead
}

// OffsetsAdapter acknowledges by deleting: there are no offsets to keep.
type OffsetsAdapter struct{}

func (OffsetsAdapter) deletes() {}

// AckMessageQuery deletes the batch up to row. In the snapshot of the Subscriber's transaction there are no other rows
// than those it has read.
func (OffsetsAdapter) AckMessageQuery(topic string, row sql.Row, _ string) sql.Query {
	return sql.Query{
		Query: `delete from ` + tableOf(topic) + `
where "offset" <= $1
  and parked_at is null
  and sent_at is null`,
		Args: []any{row.Offset},
	}
}

// ConsumedMessageQuery is empty.
func (OffsetsAdapter) ConsumedMessageQuery(string, sql.Row, string, []byte) sql.Query {
	return sql.Query{}
}

// NextOffsetQuery is what other schema adapters would ask for.
func (OffsetsAdapter) NextOffsetQuery(string, string) sql.Query {
	return refusal("outbox.OffsetsAdapter needs outbox.SchemaAdapter")
}

// SchemaInitializingQueries is empty.
func (OffsetsAdapter) SchemaInitializingQueries(string) []sql.Query { return nil }

// BeforeSubscribingQueries is empty.
func (OffsetsAdapter) BeforeSubscribingQueries(string, string) []sql.Query { return nil }

// refusal is a query that fails with a reason: watermill-sql's interfaces have no error here.
func refusal(reason string) sql.Query {
	return sql.Query{Query: "select cast('" + reason + "' as integer)"}
}
