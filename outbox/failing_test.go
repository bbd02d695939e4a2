package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/outbox"
)

// refusing refuses the messages of some payloads.
func refusing(payloads ...string) func(string, *message.Message) error {
	return func(_ string, msg *message.Message) error {
		if slices.Contains(payloads, string(msg.Payload)) {
			return errors.New("no:\x00 \xff") // text that PostgreSQL refuses
		}
		return nil
	}
}

// trickle keeps the broker taking messages, until the test ends.
func trickle(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	p := newPublisher(t, outbox.Config{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			tx, err := pool.Begin(ctx)
			if err != nil {
				return
			}
			if p.PublishTx(ctx, tx, "topic", newMessage("", "trickle")) == nil {
				_ = tx.Commit(ctx)
			}
			_ = tx.Rollback(context.Background())
			time.Sleep(5 * time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func withoutTrickle(all []sent) []string {
	return slices.DeleteFunc(payloads(all), func(p string) bool { return p == "trickle" })
}

func TestARetriedMessageIsSentBeforeThoseBehindIt(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	var down atomic.Bool
	down.Store(true)
	b.refuse = func(_ string, msg *message.Message) error {
		if down.Load() && string(msg.Payload) == "0" {
			return permanentError{}
		}
		return nil
	}
	publish(t, pool, numbered(5, 1)...)
	stop := startRelay(t, pool, b, outbox.RelayConfig{MaxAttempts: 2})
	eventually(t, "it is parked", func() bool { return len(parked(t, pool)) == 1 })
	stop()
	// Another relay knows it from the table.
	startRelay(t, pool, b, outbox.RelayConfig{})
	publish(t, pool, newMessage("other", "other"))
	b.wait(t, 1)
	require.Equal(t, []string{"other"}, payloads(b.all()))
	down.Store(false)
	_, err := outbox.Config{}.RetryParked(t.Context(), pool, parked(t, pool)[0].Offset)
	require.NoError(t, err)
	require.Equal(t, []string{"other", "0", "1", "2", "3", "4"}, payloads(b.wait(t, 6)))
	drained(t, pool)
}

type permanentError struct{}

func (permanentError) Error() string   { return "too large" }
func (permanentError) Permanent() bool { return true }

func TestKeysGoOnBehindParkedMessages(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	var down atomic.Bool
	down.Store(true)
	b.refuse = func(_ string, msg *message.Message) error {
		if n, _ := strconv.Atoi(string(msg.Payload)); down.Load() && n%10 == 0 {
			return permanentError{}
		}
		return nil
	}
	publish(t, pool, numbered(40, 2)...)
	config := outbox.RelayConfig{MaxAttempts: 1, PassParked: true, BatchSize: 8}
	stop := startRelay(t, pool, b, config)
	eventually(t, "all others are sent", func() bool { return len(b.all()) == 36 })
	require.Equal(t, []string{"0", "10", "20", "30"}, parkedPayloads(t, pool))
	count, behind, err := outbox.Config{}.CountParked(t.Context(), pool)
	require.NoError(t, err)
	require.EqualValues(t, 4, count)
	require.Zero(t, behind)
	stop()
	startRelay(t, pool, b, config)
	publish(t, pool, newMessage("key-0", "41"))
	b.wait(t, 37)
	down.Store(false)
	var offsets []int64
	for _, p := range parked(t, pool) {
		offsets = append(offsets, p.Offset)
	}
	_, err = outbox.Config{}.RetryParked(t.Context(), pool, offsets...)
	require.NoError(t, err)
	b.wait(t, 41)
	drained(t, pool)
	require.Len(t, b.all(), 41)
}

// While the relay has yet to hear that parked messages are to be tried again, their keys go on in order.
func TestKeysGoOnInOrderWhenMessagesAreRetried(t *testing.T) {
	t.Parallel()
	pool, p := newPool(t), newPublisher(t, outbox.Config{})
	const keys = 50
	b := newBroker()
	var down atomic.Bool
	down.Store(true)
	var tries, again [2]atomic.Bool
	goOn := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	b.refuse = func(_ string, msg *message.Message) error {
		switch text := string(msg.Payload); text {
		case "parked":
			if down.Load() {
				return permanentError{}
			}
		case "waits 0", "waits 1":
			i := text[6] - '0'
			if !tries[i].Swap(true) {
				return errors.New("the first time")
			}
			again[i].Store(true)
			<-goOn[i]
		}
		return nil
	}
	all := func(payload string) (msgs []*message.Message) {
		for i := range keys {
			msgs = append(msgs, newMessage(fmt.Sprint("key-", i), payload))
		}
		return msgs
	}
	publish(t, pool, append(all("parked"), newMessage("", "waits 0"))...)
	startRelay(t, pool, b, outbox.RelayConfig{MaxAttempts: 2, PassParked: true})
	eventually(t, "all are parked, but for one", func() bool { return len(parked(t, pool)) == keys && again[0].Load() })
	down.Store(false)
	inTx(t, pool, func(tx pgx.Tx) {
		var offsets []int64
		for i := range keys {
			offsets = append(offsets, int64(i+1))
		}
		n, err := outbox.Config{}.RetryParked(t.Context(), tx, offsets...)
		require.NoError(t, err)
		require.EqualValues(t, keys, n)
		require.NoError(t, p.PublishTx(t.Context(), tx, "topic", append(all("1"), newMessage("", "waits 1"))...))
	})
	// The table has the keys wait now. The relay asks for that only while a message waits that it knows of, and when that is
	// sent it reads on from there.
	eventually(t, "another waits", again[1].Load)
	for i := range goOn {
		close(goOn[i])
		eventually(t, "it is gone", func() bool {
			var there bool
			err := pool.QueryRow(t.Context(), `select exists (select from watermill_outbox where payload = $1)`, fmt.Appendf(nil, "waits %d", i)).Scan(&there)
			require.NoError(t, err)
			return !there
		})
		publish(t, pool, append(all(strconv.Itoa(i+2)), newMessage("", "passes"))...)
		eventually(t, "others pass", func() bool {
			return len(slices.DeleteFunc(b.all(), func(s sent) bool { return s.Payload != "passes" })) == i+1
		})
	}
	next := make(map[string]int)
	for _, s := range b.wait(t, 4*keys+4) {
		if number, err := strconv.Atoi(s.Payload); err == nil {
			next[s.key()]++
			require.Equal(t, next[s.key()], number, s.key())
		}
	}
}

// Several parked messages of a key are retried: they leave in their order, also where one fails once more.
func TestRetriedMessagesOfAKeyLeaveInOrder(t *testing.T) {
	t.Parallel()
	for _, pass := range []bool{false, true} {
		for _, fails := range []string{"none", "0", "1"} {
			t.Run(fmt.Sprintf("pass %v, fails again %s", pass, fails), func(t *testing.T) {
				t.Parallel()
				pool := newPool(t)
				b := newBroker()
				var down, failed atomic.Bool
				down.Store(true)
				b.refuse = func(_ string, msg *message.Message) error {
					switch {
					case down.Load():
						return permanentError{}
					case string(msg.Payload) == fails && !failed.Swap(true):
						return errors.New("once more")
					}
					return nil
				}
				publish(t, pool, numbered(4, 1)...)
				stop := startRelay(t, pool, b, outbox.RelayConfig{MaxAttempts: 1, PassParked: true})
				eventually(t, "all are parked", func() bool { return len(parked(t, pool)) == 4 })
				stop()
				down.Store(false)
				startRelay(t, pool, b, outbox.RelayConfig{PassParked: pass})
				var offsets []int64
				for _, p := range parked(t, pool) {
					offsets = append(offsets, p.Offset)
				}
				_, err := outbox.Config{}.RetryParked(t.Context(), pool, offsets...)
				require.NoError(t, err)
				b.wait(t, 4)
				publish(t, pool, newMessage("key-0", "4"))
				require.Equal(t, []string{"0", "1", "2", "3", "4"}, payloads(b.wait(t, 5)))
				drained(t, pool)
			})
		}
	}
}

// While the broker takes nothing, no message is to blame; when it is back, nothing waits for the end of a long back-off.
func TestAnOutageParksNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	var down atomic.Bool
	down.Store(true)
	var refused atomic.Int32
	var taken sync.Map // when, by UUID
	b.refuse = func(_ string, msg *message.Message) error {
		if down.Load() {
			refused.Add(1)
			return errors.New("connection refused")
		}
		taken.LoadOrStore(msg.UUID, time.Now())
		return nil
	}
	const count = 2000
	publish(t, pool, numbered(count, 500)...)
	startRelay(t, pool, b, outbox.RelayConfig{MaxAttempts: 1})
	eventually(t, "it has tried", func() bool { return refused.Load() > 400 })
	var noted int
	require.NoError(t, pool.QueryRow(t.Context(), `select count(*) from watermill_outbox
		where last_error = 'connection refused' and next_attempt_at > now() - interval '1 minute'`).Scan(&noted))
	require.NotZero(t, noted)
	require.Less(t, noted, 300, "it goes on trying new keys though nothing is taken")
	var waiting []string
	eventually(t, "some wait long", func() bool {
		rows, err := pool.Query(t.Context(), `select uuid from watermill_outbox where next_attempt_at > clock_timestamp() + interval '10 seconds'`)
		require.NoError(t, err)
		waiting, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return len(waiting) >= 10
	})
	require.Empty(t, parked(t, pool))
	var attempts int
	require.NoError(t, pool.QueryRow(t.Context(), `select sum(attempts) from watermill_outbox`).Scan(&attempts))
	require.Zero(t, attempts)
	began := time.Now()
	down.Store(false)
	b.wait(t, count)
	require.True(t, slices.ContainsFunc(waiting, func(uuid string) bool {
		at, _ := taken.Load(uuid)
		return at.(time.Time).Sub(began) < 9*time.Second
	}), "all were tried when their back-offs were over, and none when the broker was back")
	drained(t, pool)
	require.Len(t, b.all(), count)
	next := make(map[string]int)
	for _, s := range b.all() {
		n, _ := strconv.Atoi(s.Payload)
		require.Equal(t, n%500+500*next[s.key()], n)
		next[s.key()]++
	}
}

// A topic that always fails, slowly and with many keys, holds up only its own keys.
func TestAFailingTopicHoldsUpItsOwnKeysOnly(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	b := newBroker()
	b.refuse = func(topic string, _ *message.Message) error {
		if topic == "bad" {
			time.Sleep(20 * time.Millisecond)
			return errors.New("no such topic")
		}
		return nil
	}
	startRelay(t, pool, b, outbox.RelayConfig{MaxAttempts: 3, BatchSize: 50, Concurrency: 8, Wake: p})
	const rounds, keys = 30, 40
	for round := range rounds {
		tx := begin(t, pool)
		var bad, good []*message.Message
		for key := range keys {
			bad = append(bad, newMessage(fmt.Sprint("bad-", key), fmt.Sprint(round)))
			good = append(good, newMessage(fmt.Sprint("good-", key), fmt.Sprint(round)))
		}
		require.NoError(t, p.PublishTx(t.Context(), tx, "bad", bad...))
		require.NoError(t, p.PublishTx(t.Context(), tx, "good", good...))
		require.NoError(t, tx.Commit(t.Context()))
		p.Wake()
	}
	next := make(map[string]int)
	for _, s := range b.wait(t, rounds*keys) {
		require.Equal(t, "good", s.Topic)
		require.Equal(t, fmt.Sprint(next[s.key()]), s.Payload)
		next[s.key()]++
	}
}

// One worker, for which messages that fail slowly are always due.
func TestRetriesLeaveTheOthersTheirTurn(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	slow := make(chan struct{}, 1000)
	b.refuse = func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "alive" {
			return nil
		}
		time.Sleep(200 * time.Millisecond)
		slow <- struct{}{}
		return errors.New("timeout")
	}
	const failing = 8
	publish(t, pool, numbered(failing, failing)...)
	startRelay(t, pool, b, outbox.RelayConfig{Concurrency: 1})
	for range 3 * failing {
		<-slow
	}
	publish(t, pool, newMessage("alive", "alive"))
	began := len(slow)
	b.wait(t, 1)
	require.Less(t, len(slow)-began, 6)
}

// A row that was written by hand, without the key's lock, may appear before one of its key that has trouble.
func TestARowThatAppearsBeforeAFailedOneIsSent(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	var down atomic.Bool
	down.Store(true)
	tried := make(chan struct{}, 1000)
	b.refuse = func(_ string, msg *message.Message) error {
		if down.Load() && string(msg.Payload) == "failed" {
			tried <- struct{}{}
			return errors.New("no")
		}
		return nil
	}
	startRelay(t, pool, b, outbox.RelayConfig{})
	early := begin(t, pool)
	_, err := early.Exec(t.Context(), `insert into watermill_outbox (uuid, topic, key, payload) values ('u', 'topic', 'key', 'early')`)
	require.NoError(t, err)
	publish(t, pool, newMessage("key", "failed"), newMessage("key", "behind"))
	<-tried
	<-tried
	require.NoError(t, early.Commit(t.Context()))
	require.Equal(t, []string{"early"}, payloads(b.wait(t, 1)))
	down.Store(false)
	require.Equal(t, []string{"early", "failed", "behind"}, payloads(b.wait(t, 3)))
	drained(t, pool)
}

// Messages that are permanently refused say nothing of their topic.
func TestPermanentFailuresHoldUpNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	b.refuse = func(_ string, msg *message.Message) error {
		if string(msg.Payload) != "good" {
			return permanentError{}
		}
		return nil
	}
	publish(t, pool, numbered(500, 500)...)
	publish(t, pool, newMessage("good", "good"))
	began := time.Now()
	startRelay(t, pool, b, outbox.RelayConfig{BatchSize: 100})
	b.wait(t, 1)
	require.Less(t, time.Since(began), 10*time.Second)
}

// A person corrects the key of a parked message, or of one that waits, and has it tried again.
func TestAMessageWhoseKeyIsCorrected(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	b := newBroker()
	b.refuse = func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "0" && msg.Metadata["mended"] == "" {
			return permanentError{}
		}
		return nil
	}
	publish(t, pool, newMessage("wrong", "0"), newMessage("wrong", "1"))
	startRelay(t, pool, b, outbox.RelayConfig{MaxAttempts: 1, Shards: 16})
	eventually(t, "it is parked", func() bool { return len(parked(t, pool)) == 1 })
	for _, key := range []string{"right", "or this", "or that"} { // of other shards
		_, err := pool.Exec(t.Context(), `update watermill_outbox set key = $1 where parked_at is not null`, key)
		require.NoError(t, err)
		_, err = outbox.Config{}.RetryParked(t.Context(), pool, parked(t, pool)[0].Offset)
		require.NoError(t, err)
		eventually(t, "it is parked", func() bool { return len(parked(t, pool)) == 1 })
	}
	require.Equal(t, []string{"1"}, payloads(b.wait(t, 1)), "the old key goes on")
	_, err := pool.Exec(t.Context(), `update watermill_outbox set key = 'last', metadata = '{"mended": "yes"}' where parked_at is not null`)
	require.NoError(t, err)
	_, err = outbox.Config{}.RetryParked(t.Context(), pool, parked(t, pool)[0].Offset)
	require.NoError(t, err)
	require.Equal(t, []string{"1", "0"}, payloads(b.wait(t, 2)))
	drained(t, pool)
}
