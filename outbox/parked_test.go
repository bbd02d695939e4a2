package outbox_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/outbox"
)

func parked(t testing.TB, pool *pgxpool.Pool) []outbox.Parked {
	t.Helper()
	all, err := outbox.Config{}.ListParked(t.Context(), pool, 0, 1000)
	require.NoError(t, err)
	return all
}

func parkedPayloads(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	var texts []string
	for _, p := range parked(t, pool) {
		texts = append(texts, string(p.Payload))
	}
	return texts
}

func TestAMessageThatFailsIsParkedAndItsKeyWaits(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	config := outbox.Config{}
	b := newBroker()
	b.refuse = refusing("2", "5")
	publish(t, pool, numbered(12, 3)...) // 2, 5, 8, 11 are one key
	trickle(t, pool)
	startRelay(t, pool, b, outbox.RelayConfig{MaxAttempts: 3})
	eventually(t, "2 is parked", func() bool { return len(parked(t, pool)) == 1 })
	all := parked(t, pool)
	require.Equal(t, "2", string(all[0].Payload))
	require.Equal(t, 3, all[0].Attempts)
	require.Equal(t, "no: \uFFFD", all[0].LastError)
	require.Equal(t, "key-2", all[0].Key)
	msg, err := all[0].Message()
	require.NoError(t, err)
	require.Equal(t, "key-2", msg.Metadata[outbox.PartitionKeyKey])
	count, behind, err := config.CountParked(t.Context(), pool)
	require.NoError(t, err)
	require.EqualValues(t, 1, count)
	require.EqualValues(t, 3, behind)
	eventually(t, "the others are sent", func() bool { return len(withoutTrickle(b.all())) == 8 })
	require.NotContains(t, withoutTrickle(b.all()), "8")

	// Retried, it fails again; the number of its attempts begins anew.
	n, err := config.RetryParked(t.Context(), pool, all[0].Offset, 999)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	eventually(t, "2 is parked again", func() bool {
		again := parked(t, pool)
		return len(again) == 1 && again[0].ParkedAt.After(all[0].ParkedAt) && again[0].Attempts == 3
	})
	// Discarded, it lets its key go on, up to the next one that fails.
	n, err = config.DiscardParked(t.Context(), pool, all[0].Offset, all[0].Offset)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	eventually(t, "5 is parked", func() bool { return slices.Equal(parkedPayloads(t, pool), []string{"5"}) })
	n, err = config.DiscardParked(t.Context(), pool, parked(t, pool)[0].Offset)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	eventually(t, "all others are sent", func() bool { return len(withoutTrickle(b.all())) == 10 })
	var ofKey []string
	for _, s := range b.all() {
		if s.key() == "key-2" {
			ofKey = append(ofKey, s.Payload)
		}
	}
	require.Equal(t, []string{"8", "11"}, ofKey)
}

func TestARowThatCannotBeReadIsParked(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	_, err := pool.Exec(t.Context(), `alter table watermill_outbox drop constraint watermill_outbox_metadata_check;
		insert into watermill_outbox (uuid, topic, key, metadata) values ('u', 't', 'bad', '[1]'), ('u2', 't', 'bad', '{}')`)
	require.NoError(t, err)
	publish(t, pool, numbered(5, 2)...)
	b := newBroker()
	startRelay(t, pool, b, outbox.RelayConfig{})
	eventually(t, "it is parked", func() bool { return len(parked(t, pool)) == 1 })
	p := parked(t, pool)[0]
	require.Equal(t, "u", p.UUID)
	require.Equal(t, "[1]", string(p.Metadata))
	require.Contains(t, p.LastError, "metadata")
	_, err = p.Message()
	require.Error(t, err)
	b.wait(t, 5)
	eventually(t, "the others are sent", func() bool { return len(contents(t, pool, outbox.Config{})) == 2 })
	_, err = outbox.Config{}.DiscardParked(t.Context(), pool, p.Offset)
	require.NoError(t, err)
	require.Equal(t, "u2", b.wait(t, 6)[5].UUID)
}

// A person clears by hand what parking has set. The message is tried again, and no other waits for it.
func TestParkedMessagesThatAreClearedByHand(t *testing.T) {
	t.Parallel()
	for name, update := range map[string]string{
		"parked_at alone": `update watermill_outbox set parked_at = null where parked_at is not null`,
		"before all time": `update watermill_outbox set parked_at = null, next_attempt_at = '-infinity' where parked_at is not null`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, b := newPool(t), newBroker()
			var well atomic.Bool
			b.refuse = func(_ string, msg *message.Message) error {
				if string(msg.Payload) == "bad" && !well.Load() {
					return permanentError{}
				}
				return nil
			}
			publish(t, pool, newMessage("key", "bad"))
			startRelay(t, pool, b, outbox.RelayConfig{MaxAttempts: 1})
			eventually(t, "it is parked", func() bool { return len(parked(t, pool)) == 1 })
			well.Store(true)
			_, err := pool.Exec(t.Context(), update)
			require.NoError(t, err)
			b.wait(t, 1)
			publish(t, pool, newMessage("other", "1"))
			b.wait(t, 2)
			drained(t, pool)
		})
	}
}

func TestParkedMessagesAreListedAsTheyWerePublished(t *testing.T) {
	t.Parallel()
	pool, b := newPool(t), newBroker()
	b.refuse = func(string, *message.Message) error { return permanentError{} }
	msg := newMessage("key", "bad")
	for key, value := range map[string]string{"path": `C:\new`, "quoted": "\"\n\x01", "escaped": `\u0041 \x41`, "letters": "žluť"} {
		msg.Metadata.Set(key, value)
	}
	publish(t, pool, msg)
	startRelay(t, pool, b, outbox.RelayConfig{MaxAttempts: 1})
	eventually(t, "it is parked", func() bool { return len(parked(t, pool)) == 1 })
	listed, err := parked(t, pool)[0].Message()
	require.NoError(t, err)
	require.Equal(t, msg.Metadata, listed.Metadata)
}

func TestListParkedIsPaged(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	config := outbox.Config{}
	_, err := pool.Exec(t.Context(), `insert into watermill_outbox (uuid, topic, key, parked_at, next_attempt_at)
		select i, 't', i, now(), 'infinity' from generate_series(1, 25) i`)
	require.NoError(t, err)
	var after int64
	for _, want := range []int{10, 10, 5, 0} {
		page, err := config.ListParked(t.Context(), pool, after, 10)
		require.NoError(t, err)
		require.Len(t, page, want)
		if want > 0 {
			require.Equal(t, after+1, page[0].Offset)
			after = page[want-1].Offset
		}
	}
	_, err = config.ListParked(t.Context(), pool, 0, 0)
	require.Error(t, err)
	for _, none := range []func(context.Context, outbox.DB, ...int64) (int64, error){config.RetryParked, config.DiscardParked} {
		n, err := none(t.Context(), pool)
		require.NoError(t, err)
		require.Zero(t, n)
	}
}
