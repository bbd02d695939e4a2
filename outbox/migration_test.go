package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

// The statement in docs/from-watermill-sql.md takes over what the stock forwarder has not sent.
func TestCopyFromTheDefaultSchema(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pool := pgtest.PoolOn(t, url)
	_, err := pool.Exec(t.Context(), outbox.Config{}.Schema())
	require.NoError(t, err)
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	defer db.Close()

	const topic = "events_to_forward"
	inner, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true}, nil)
	require.NoError(t, err)
	publisher := forwarder.NewPublisher(inner, forwarder.PublisherConfig{ForwarderTopic: topic})
	for i := range 10 {
		msg := message.NewMessage(fmt.Sprintf("m%d", i), []byte{0, 0xff, byte(i)})
		if i%2 == 0 {
			msg.Metadata.Set(outbox.PartitionKeyKey, "card")
			msg.Metadata.Set("quote", `"it's"`)
		}
		require.NoError(t, publisher.Publish("mails", msg))
	}

	// The stock subscriber acks the first four.
	subscriber, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
		SchemaAdapter:    wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 1},
		OffsetsAdapter:   wsql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
		PollInterval:     10 * time.Millisecond,
	}, nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	messages, err := subscriber.Subscribe(ctx, topic)
	require.NoError(t, err)
	for range 4 {
		(<-messages).Ack()
	}
	require.Eventually(t, func() bool {
		var acked int
		err := pool.QueryRow(t.Context(), `select coalesce(max(offset_acked), 0) from watermill_offsets_events_to_forward`).Scan(&acked)
		return err == nil && acked == 4
	}, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, subscriber.Close())

	text, err := os.ReadFile("../docs/from-watermill-sql.md")
	require.NoError(t, err)
	_, statement, found := strings.Cut(string(text), "```sql\n")
	require.True(t, found)
	statement, _, _ = strings.Cut(statement, "```")
	_, err = pool.Exec(t.Context(), statement)
	require.NoError(t, err)

	rows := contents(t, pool, outbox.Config{})
	require.Len(t, rows, 6)
	for i, row := range rows {
		n := i + 4
		require.Equal(t, fmt.Sprintf("m%d", n), row.UUID)
		require.Equal(t, "mails", row.Topic)
		require.Equal(t, []byte{0, 0xff, byte(n)}, row.Payload)
		if n%2 == 0 {
			require.Equal(t, "card", row.Key)
			require.JSONEq(t, `{"partition_key": "card", "quote": "\"it's\""}`, row.Metadata)
		} else {
			require.Equal(t, row.UUID, row.Key)
			require.JSONEq(t, `{}`, row.Metadata)
		}
	}
}
