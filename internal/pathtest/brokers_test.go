package pathtest

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/watermill-once/watermill-once/_examples/broker"
	"github.com/watermill-once/watermill-once/internal/pathtest/servers"
	"github.com/watermill-once/watermill-once/internal/pgtest"
	once "github.com/watermill-once/watermill-once/middleware"
)

// brokers are those of _examples/broker, with its settings, but that the members of a group that were killed are missed sooner: one
// that dies in the middle of joining holds up its group for ack_wait.
var brokers = map[string]func(t testing.TB) (url string){
	"gochannel": func(testing.TB) string { return "gochannel://" },
	"postgres":  func(t testing.TB) string { return options(pgtest.URL(t), "poll=20ms") },
	"kfake": func(t testing.TB) string {
		kafka := StartKafka(t)
		url := "kafka://" + kafka.Brokers()[0] + "?replication=1&session_timeout=2s&ack_wait=5s"
		fakes.Store(url, kafka.Cluster)
		return url
	},
	"kafka": func(t testing.TB) string { return options(servers.Kafka(t), "session_timeout=2s&ack_wait=5s") },
	"nats":  func(t testing.TB) string { return options(servers.NATS(t), "ack_wait=5s") },
	"amqp":  servers.RabbitMQ,
	"redis": func(t testing.TB) string { return options(servers.Redis(t), "ack_wait=5s") },
}

// fakes are the clusters of kfake, by URL.
var fakes sync.Map

func options(url, more string) string {
	if strings.Contains(url, "?") {
		return url + "&" + more
	}
	return url + "?" + more
}

// cases are what the main job must stand, over every broker. gochannel has no part in those that end a process: its messages are
// in it.
var cases = map[string]func(t *testing.T, w *world){
	"fresh":     freshEvents,
	"duplicate": duplicateEvents,
	"stale":     staleEvents,
	"failure":   failureThenSuccess,
	"poison":    poisonMessages,
	"kill":      killedAtCrashPoints,
	"restart":   restartedWhereItWas,
}

var outlivesItsProcess = map[string]bool{"kill": true, "restart": true}

func TestBrokers(t *testing.T) {
	t.Parallel()
	for name, start := range brokers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start(t)
			for name, test := range cases {
				if outlivesItsProcess[name] && strings.HasPrefix(url, "gochannel") {
					continue
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					test(t, newBrokerWorld(t, url))
				})
			}
			if name == "kafka" {
				onlyOnAServer(t, url)
			}
		})
	}
}

func newBrokerWorld(t *testing.T, url string) *world {
	t.Helper()
	b, err := broker.Open(t.Context(), url, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	w := &world{
		address: url, broker: b, prefix: "t" + strings.ToLower(rand.Text()[:8]) + "-", publisher: b.Publisher, sent: map[string]event{},
	}
	w.openDatabase(t)
	var groups []string
	for _, consumer := range consumers {
		groups = append(groups, w.prefix+consumer)
	}
	require.NoError(t, b.Create(t.Context(), w.prefix+eventsTopic, groups...))
	require.NoError(t, b.Create(t.Context(), w.prefix+outTopic, w.prefix+"out"))
	require.NoError(t, b.Create(t.Context(), w.prefix+poisonTopic, w.prefix+"poison"))
	w.out = collect(t, b, w.prefix+"out", w.prefix+outTopic)
	w.poisoned = collect(t, b, w.prefix+"poison", w.prefix+poisonTopic)
	return w
}

func freshEvents(t *testing.T, w *world) {
	s, handled := w.tallied()
	start(t, s)
	w.send(t, history("a", 5, 10)...)
	w.waitUntilAllAreIn(t)
	w.check(t)
	handled.waitFor(t, once.Fresh, 50*len(consumers))
	require.Equal(t, 50*len(consumers), handled.number(once.Fresh))
	w.requireNothingPoisoned(t)
}

func duplicateEvents(t *testing.T, w *world) {
	s, handled := w.tallied()
	start(t, s)
	events := history("a", 5, 5)
	for range 3 {
		w.send(t, events...)
	}
	handled.wait(t, 3*25*len(consumers))
	w.waitUntilAllAreIn(t)
	w.check(t)
	require.Equal(t, 25*len(consumers), handled.number(once.Fresh))
	require.GreaterOrEqual(t, handled.number(once.Duplicate), 2*25*len(consumers))
}

func staleEvents(t *testing.T, w *world) {
	s, handled := w.tallied()
	start(t, s)
	events := history("a", 3, 3) // version 1 of each entity, then 2, then 3
	w.send(t, events[6:]...)
	w.waitForEffects(t, 3*len(consumers))
	w.send(t, events[:6]...)
	handled.wait(t, 9*len(consumers))
	w.waitUntilAllAreIn(t)
	w.check(t)
	require.Equal(t, 6, handled.number(once.Stale), "of the state; the ledger applies all")
}

// Each handler fails twice when its work is done, once by a panic; and once more than Retry has patience for.
func failureThenSuccess(t *testing.T, w *world) {
	s := w.service()
	var mu sync.Mutex
	attempts := map[string]int{}
	s.around = func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err != nil {
				return nil, err
			}
			key, _ := once.IdempotencyKey(msg.Context(), "attempts")
			mu.Lock()
			defer mu.Unlock()
			attempts[key]++
			switch n := attempts[key]; {
			case n == 1:
				return nil, errors.New("failed")
			case n == 2:
				panic("panicked")
			case n < 6: // an outage: nacked, and not poisoned
				return nil, once.ErrCommitUnknown
			}
			return produced, nil
		}
	}
	start(t, s)
	w.send(t, history("a", 2, 3)...)
	w.waitUntilAllAreIn(t)
	w.check(t)
	w.requireNothingPoisoned(t)
}

// What cannot be handled goes to the poison queue as it came, and holds nothing up.
func poisonMessages(t *testing.T, w *world) {
	start(t, w.service())
	events := history("a", 2, 6)
	w.send(t, events[:6]...)
	bad := map[string]string{
		"no-json":    `{"id": "x", "entity": "a-1", `,
		"no-version": `{"id": "y", "entity": "a-1", "version": {}}`,
	}
	for uuid, payload := range bad {
		msg := message.NewMessage(uuid, []byte(payload))
		msg.Metadata.Set("mine", "kept")
		require.NoError(t, w.publisher.Publish(w.prefix+eventsTopic, msg))
	}
	w.send(t, events[6:]...)
	w.waitUntilAllAreIn(t)
	w.check(t)
	poisoned := map[string]bool{}
	w.poisoned.wait(t, func(all []*message.Message) bool {
		for _, msg := range all {
			require.Equal(t, bad[msg.UUID], string(msg.Payload))
			require.Equal(t, "kept", msg.Metadata.Get("mine"))
			require.NotEmpty(t, msg.Metadata.Get(wmiddleware.ReasonForPoisonedKey))
			poisoned[msg.Metadata.Get(wmiddleware.PoisonedHandlerKey)+msg.UUID] = true
		}
		return len(poisoned) == len(bad)*len(consumers)
	})
}

// kill -9 with the work done and not committed, committed and not acked, and sent and not known to be: the next process takes up
// what the broker gives again.
func killedAtCrashPoints(t *testing.T, w *world) {
	events := history("a", 3, 8)
	w.send(t, events...)
	dead := map[string]bool{}
	for _, point := range []string{afterWork, afterCommit, afterSend} {
		s := w.service()
		s.Crash = crash{Point: point, After: 2}
		child := startChild(t, s)
		child.waitReached(t)
		w.waitUntilJoined(t, dead)
		child.kill()
	}
	start(t, w.service())
	w.waitUntilAllAreIn(t)
	w.check(t)
}

// waitUntilJoined keeps a kill out of the moment in which a member joins: kfake leaves the group's next member waiting for ever then.
// Apache Kafka does not.
func (w *world) waitUntilJoined(t *testing.T, dead map[string]bool) {
	t.Helper()
	cluster, ok := fakes.Load(w.address)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), Longest)
	defer cancel()
	for _, consumer := range consumers {
		group, err := cluster.(*kfake.Cluster).WaitGroupInfo(ctx, w.prefix+consumer, func(g *kfake.GroupInfo) bool {
			return g != nil && g.State == "Stable" && len(g.Members) == 1 && !dead[g.Members[0].MemberID]
		})
		require.NoError(t, err)
		dead[group.Members[0].MemberID] = true
	}
}

// A group that comes back goes on where it was: what was sent meanwhile is there, and what it had acked does not all come again.
func restartedWhereItWas(t *testing.T, w *world) {
	events := history("a", 5, 10)
	s, handled := w.tallied()
	stop := start(t, s)
	w.send(t, events[:25]...)
	handled.wait(t, 25*len(consumers))
	w.waitUntilAllAreIn(t)
	stop()
	w.send(t, events[25:]...)
	s, handled = w.tallied()
	start(t, s)
	w.waitUntilAllAreIn(t)
	w.check(t)
	handled.waitFor(t, once.Fresh, 25*len(consumers))
	require.Equal(t, 25*len(consumers), handled.number(once.Fresh))
	require.Less(t, handled.number(once.Duplicate), 25, "those whose acks were on their way")
}

// tallied gives a service that counts what it has handled.
func (w *world) tallied() (service, *tally) {
	s, handled := w.service(), newTally()
	s.outcome = handled.add
	return s, handled
}

// waitUntilAllAreIn waits until the ledger has every event, the state the newest of each entity, and the relay nothing left.
func (w *world) waitUntilAllAreIn(t *testing.T) {
	t.Helper()
	newest := map[string]int64{}
	for _, e := range w.sent {
		newest[e.Entity] = max(newest[e.Entity], e.Version)
	}
	deadline := time.Now().Add(Longest)
	for {
		state, ledger := map[string]int64{}, 0
		for _, e := range w.effects(t) {
			switch e.Consumer {
			case "ledger":
				ledger++
			case "state":
				state[e.Entity] = e.Version
			}
		}
		if ledger >= len(w.sent) && maps.Equal(state, newest) {
			break
		}
		require.True(t, time.Now().Before(deadline), "not all in: the ledger has %d of %d, the state is %v of %v", ledger, len(w.sent), state, newest)
		time.Sleep(10 * time.Millisecond)
	}
	w.waitFor(t, "select count(*) = 0 from watermill_outbox")
}

func (w *world) requireNothingPoisoned(t *testing.T) {
	t.Helper()
	require.Empty(t, w.poisoned.wait(t, func([]*message.Message) bool { return true }))
}
