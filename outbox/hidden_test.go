package outbox_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/outbox"
)

// The broker still has messages when the table is emptied, and their offsets become those of others. What comes behind these
// is not sent before them; what was only in memory is not sent at all.
func TestOffsetsBeginAnewWhileTheBrokerHasMessages(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	given, goOn := make(chan struct{}), make(chan struct{})
	b.refuse = func(_ string, msg *message.Message) error {
		if strings.HasPrefix(string(msg.Payload), "old") {
			given <- struct{}{}
			<-goOn
		}
		return nil
	}
	publish(t, pool, newMessage("A", "old 1"), newMessage("B", "old 2"), newMessage("A", "old 3"))
	startRelay(t, pool, b, outbox.RelayConfig{})
	<-given
	<-given
	_, err := pool.Exec(t.Context(), `truncate watermill_outbox restart identity`)
	require.NoError(t, err)
	publish(t, pool, newMessage("C", "1"), newMessage("D", "2"), newMessage("E", "3"), newMessage("D", "4"), newMessage("C", "5"))
	require.Equal(t, []string{"3"}, payloads(b.wait(t, 1)))
	publish(t, pool, newMessage("D", "6"), newMessage("E", "7"))
	require.Equal(t, []string{"3", "7"}, payloads(b.wait(t, 2)))
	close(goOn)
	all := payloads(b.wait(t, 9))
	drained(t, pool)
	require.Len(t, b.all(), 9)
	for _, key := range [][]string{{"old 1"}, {"old 2"}, {"1", "5"}, {"2", "4", "6"}} {
		places := make([]int, len(key))
		for i, payload := range key {
			places[i] = slices.Index(all, payload)
			require.GreaterOrEqual(t, places[i], 0, payload)
		}
		require.IsIncreasing(t, append([]int{-1}, places...), "%v in %v", key, all)
	}
}

// A message that failed is not taken for another one that has its offset now, and which fails too.
func TestOffsetsBeginAnewWhileMessagesFail(t *testing.T) {
	t.Parallel()
	pool, p := newPool(t), newPublisher(t, outbox.Config{})
	b := newBroker()
	var failed atomic.Bool
	b.refuse = func(_ string, msg *message.Message) error {
		switch string(msg.Payload) {
		case "old":
			return errors.New("refused")
		case "1":
			if !failed.Swap(true) {
				return errors.New("the first time")
			}
		}
		return nil
	}
	publish(t, pool, newMessage("A", "old"))
	startRelay(t, pool, b, outbox.RelayConfig{})
	eventually(t, "its failure is noted", func() bool {
		var noted bool
		err := pool.QueryRow(t.Context(), `select last_error is not null from watermill_outbox`).Scan(&noted)
		require.NoError(t, err)
		return noted
	})
	inTx(t, pool, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), `truncate watermill_outbox restart identity`)
		require.NoError(t, err)
		require.NoError(t, p.PublishTx(t.Context(), tx, "topic", newMessage("B", "1"), newMessage("B", "2")))
	})
	require.Equal(t, []string{"1", "2"}, payloads(b.wait(t, 2)))
	drained(t, pool)
	require.Len(t, b.all(), 2)
}
