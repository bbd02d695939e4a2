package outbox_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/outbox"
)

// A key whose message hangs has more behind it than memory holds; so has one that is slow. Others pass them.
func TestAKeyThatHangsHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	const count = 600
	hangs := make(chan struct{})
	b := newBroker()
	b.refuse = func(_ string, msg *message.Message) error {
		switch msg.Metadata[outbox.PartitionKeyKey] {
		case "hot":
			<-hangs
		case "slow":
			time.Sleep(time.Millisecond)
		}
		return nil
	}
	var hot, slow, cold []*message.Message
	for i := range count {
		hot = append(hot, newMessage("hot", strconv.Itoa(i)))
		slow = append(slow, newMessage("slow", strconv.Itoa(i)))
	}
	for i := range count / 10 {
		cold = append(cold, newMessage("cold", strconv.Itoa(i)))
	}
	publish(t, pool, hot...)
	publish(t, pool, slow...)
	publish(t, pool, cold...)
	startRelay(t, pool, b, outbox.RelayConfig{BatchSize: 40, Concurrency: 4})
	b.wait(t, len(slow)+len(cold))
	// What comes meanwhile passes as well, and the key goes on in order, also with what came meanwhile.
	publish(t, pool, newMessage("late", "0"), newMessage("hot", strconv.Itoa(count)))
	b.wait(t, len(slow)+len(cold)+1)
	close(hangs)
	total := len(hot) + len(slow) + len(cold) + 2
	b.wait(t, total)
	drained(t, pool)
	requireEachInOrder(t, b.all(), total)
}

// Some keys hang, each with a message behind it, and these alone are more than memory holds.
func TestManyKeysThatHangHoldUpNoOther(t *testing.T) {
	t.Parallel()
	for name, behind := range map[string]string{"few": "behind", "large": "behind" + strings.Repeat(" ", 17<<20)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			const keys, others = 4, 20
			hangs := make(chan struct{})
			b := newBroker()
			b.refuse = func(_ string, msg *message.Message) error {
				if string(msg.Payload) == "hangs" {
					<-hangs
				}
				return nil
			}
			config := outbox.RelayConfig{}
			if name == "few" {
				config.BatchSize = keys + 2 // so memory holds three messages
			}
			for i := range keys {
				publish(t, pool, newMessage(fmt.Sprint(i), "hangs"))
			}
			for i := range keys {
				publish(t, pool, newMessage(fmt.Sprint(i), behind))
			}
			for range others {
				publish(t, pool, newMessage("", "other"))
			}
			stop := startRelay(t, pool, b, config)
			for _, s := range b.wait(t, others) {
				require.Equal(t, "other", s.Payload)
			}
			close(hangs)
			all := b.wait(t, others+2*keys)[others:]
			sent := make(map[string]string)
			for _, s := range all {
				sent[s.key()] += strings.TrimRight(s.Payload, " ") + " "
			}
			for key, texts := range sent {
				require.Equal(t, "hangs behind ", texts, key)
			}
			drained(t, pool)
			stop()
		})
	}
}

// requireEachInOrder takes payloads for the numbers of the messages of each key.
func requireEachInOrder(t testing.TB, all []sent, total int) {
	t.Helper()
	require.Len(t, all, total)
	next := make(map[string]int)
	for _, s := range all {
		require.Equal(t, strconv.Itoa(next[s.key()]), s.Payload, s.key())
		next[s.key()]++
	}
}

// A topic that does not exist, with more keys than memory holds, comes before one that does. Some keys have messages for
// both; when the topic is there, all leave in order.
func TestADeadTopicIsPassed(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(*broker) message.Publisher{
		"one by one": func(b *broker) message.Publisher { return b },
		"batches":    func(b *broker) message.Publisher { return &batchBroker{broker: b} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, p := newPool(t), newPublisher(t, outbox.Config{})
			const keys, rounds, alive = 700, 2, 50
			exists := make(chan struct{})
			b := newBroker()
			b.refuse = func(topic string, _ *message.Message) error {
				select {
				case <-exists:
				default:
					if topic == "dead" {
						return errors.New("no such topic")
					}
				}
				return nil
			}
			tx := begin(t, pool)
			for round := range rounds {
				for key := range keys {
					topic := "dead"
					if round == 1 && key%10 == 0 {
						topic = "alive" // it waits all the same: its key does
					}
					msg := newMessage(fmt.Sprint("dead-", key), strconv.Itoa(round))
					require.NoError(t, p.PublishTx(t.Context(), tx, topic, msg))
				}
			}
			for i := range alive {
				require.NoError(t, p.PublishTx(t.Context(), tx, "alive", newMessage("alive", strconv.Itoa(i))))
			}
			require.NoError(t, tx.Commit(t.Context()))
			startRelay(t, pool, wrap(b), outbox.RelayConfig{BatchSize: 200})
			for _, s := range b.wait(t, alive) {
				require.Equal(t, "alive", s.key())
			}
			close(exists)
			total := keys*rounds + alive
			b.wait(t, total)
			drained(t, pool)
			requireEachInOrder(t, b.all(), total)
		})
	}
}
