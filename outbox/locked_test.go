package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/outbox"
)

// lockRows keeps rows locked until release is called, or the test ends.
func lockRows(t *testing.T, pool *pgxpool.Pool, where string) (release func()) {
	t.Helper()
	tx := begin(t, pool)
	_, err := tx.Exec(t.Context(), `select from watermill_outbox where `+where+` for update`)
	require.NoError(t, err)
	return func() { require.NoError(t, tx.Rollback(context.Background())) }
}

// Somebody looks at rows "for update". Others go on, also those behind them in their keys; none is sent twice.
func TestALockedRowHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep sent %v", keep), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			unsent := func() (n int) {
				err := pool.QueryRow(t.Context(), `select count(*) from watermill_outbox where sent_at is null`).Scan(&n)
				require.NoError(t, err)
				return n
			}
			const count, keys = 400, 4
			publish(t, pool, numbered(count, keys)...)
			release := lockRows(t, pool, `"offset" in (1, 7, 200)`)
			b := newBroker()
			startRelay(t, pool, b, outbox.RelayConfig{KeepSent: keep, BatchSize: 40})
			b.wait(t, count)
			eventually(t, "the others are removed", func() bool { return unsent() == 3 })
			publish(t, pool, numbered(count, keys)...)
			b.wait(t, 2*count)
			eventually(t, "the others are removed", func() bool { return unsent() == 3 })
			release()
			eventually(t, "all are removed", func() bool { return unsent() == 0 })
			require.Len(t, b.all(), 2*count)
			next := make(map[string]int)
			for _, s := range b.all() {
				require.Equal(t, fmt.Sprint((next[s.key()]*keys+int(s.key()[4]-'0'))%count), s.Payload)
				next[s.key()]++
			}
		})
	}
}

// A message fails while its row is locked: the relay remembers what it cannot note down, and tries it no more often.
func TestALockedRowThatFailsIsParkedLater(t *testing.T) {
	t.Parallel()
	for _, pass := range []bool{false, true} {
		t.Run(fmt.Sprintf("pass parked %v", pass), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			publish(t, pool, numbered(6, 2)...)
			release := lockRows(t, pool, `"offset" = 1`)
			b := newBroker()
			tries := make(chan struct{}, 100)
			b.refuse = func(_ string, msg *message.Message) error {
				if string(msg.Payload) == "0" {
					tries <- struct{}{}
					return permanentError{}
				}
				return nil
			}
			startRelay(t, pool, b, outbox.RelayConfig{MaxAttempts: 1, PassParked: pass})
			b.wait(t, 3)
			// While other messages pass, the relay compares several times what it knows with the table.
			for i, began := 0, time.Now(); time.Since(began) < 1500*time.Millisecond; i++ {
				publish(t, pool, newMessage("other", "other"))
				b.wait(t, 3+i+1)
			}
			require.Empty(t, parked(t, pool))
			require.Len(t, tries, 1)
			release()
			eventually(t, "it is parked", func() bool { return len(parked(t, pool)) == 1 })
			require.Len(t, tries, 1)
			if pass {
				eventually(t, "its key goes on", func() bool { return len(contents(t, pool, outbox.Config{})) == 1 })
			}
		})
	}
}

// A message that was sent at the second try is locked: the table says that its key waits, and the relay knows better. When
// the lock is gone, what was committed just then must not be before what came earlier.
func TestAKeyGoesOnBehindALockedRowThatHadFailed(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	failed, again := make(chan struct{}), make(chan struct{})
	var tries atomic.Int64
	b.refuse = func(_ string, msg *message.Message) error {
		switch string(msg.Payload) {
		case "refused":
			return errors.New("refused")
		case "0":
			if tries.Add(1) == 1 {
				return errors.New("the first time")
			}
			close(failed) // and its note is in the table
			<-again
		}
		return nil
	}
	// Only while a key waits does the relay ask for others.
	publish(t, pool, newMessage("waits", "refused"), newMessage("key", "0"))
	startRelay(t, pool, b, outbox.RelayConfig{})
	<-failed
	release := lockRows(t, pool, `key = 'key'`)
	close(again)
	publish(t, pool, newMessage("key", "1"))
	b.wait(t, 2)
	n := 2
	for ; n < 40; n++ {
		if n == 20 {
			release()
		}
		publish(t, pool, newMessage("key", strconv.Itoa(n)))
	}
	b.wait(t, n)
	for i, s := range b.all() {
		require.Equal(t, strconv.Itoa(i), s.Payload)
	}
}

// A relay ends, or gives shards to another one, without the rows that it cannot remove: they are sent again.
func TestLockedRowsDoNotKeepARelayFromGoing(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	const count = 64
	publish(t, pool, numbered(count, count)...)
	release := lockRows(t, pool, "true")
	b := newBroker()
	first := startRelay(t, pool, b, outbox.RelayConfig{CloseTimeout: time.Hour})
	b.wait(t, count)
	second := startRelay(t, pool, b, outbox.RelayConfig{CloseTimeout: time.Hour})
	eventually(t, "each has a half", func() bool { return fmt.Sprint(shares(t, pool)) == "[8 8]" })
	first()
	second()
	require.Len(t, contents(t, pool, outbox.Config{}), count)
	release()
	repeated := len(b.all())
	startRelay(t, pool, b, outbox.RelayConfig{})
	b.wait(t, repeated+count)
	drained(t, pool)
}
