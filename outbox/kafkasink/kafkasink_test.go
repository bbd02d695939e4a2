package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-once/watermill-once/outbox"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")) // sarama's, for the life of the program
}

var _ message.Publisher = (*Sink)(nil)

func sinkTo(t *testing.T, k cluster) *Sink {
	config := Config{Sarama: PublisherConfig()}
	config.setDefaults()
	config.Sarama.Producer.Retry.Backoff = 0
	sink := newSink(k, config)
	t.Cleanup(func() { require.NoError(t, sink.Close()) })
	return sink
}

// out is a message without a flaw: its UUID, and its key up to the first letter of it.
func out(topic, key, uuid string) outbox.Outgoing {
	return outbox.Outgoing{Topic: topic, Key: key, Message: message.NewMessage(uuid, []byte("payload"))}
}

func permanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

func TestABatchIsOneRequest(t *testing.T) {
	t.Parallel()
	kafka := newFakeKafka(map[string]int{"a": 1, "b": 1})
	sink := sinkTo(t, kafka)
	var batch []outbox.Outgoing
	for i := range 1000 {
		batch = append(batch, out([]string{"a", "b"}[i%2], fmt.Sprint("key", i%100), fmt.Sprint(i)))
	}
	for _, err := range sink.PublishBatch(t.Context(), batch) {
		require.NoError(t, err)
	}
	require.Equal(t, [][]int{{500, 500}}, kafka.calls)
}

func TestNothingOvertakesWithinAKey(t *testing.T) {
	t.Parallel()
	kafka := newFakeKafka(map[string]int{"a": 1, "b": 1})
	kafka.fate = func(b *batch) fate {
		if b.topic == "b" {
			return forbidden
		}
		return arrives
	}
	sink := sinkTo(t, kafka)
	errs := sink.PublishBatch(t.Context(), []outbox.Outgoing{
		out("a", "k", "k1"), out("b", "k", "k2"), out("a", "k", "k3"),
		out("a", "l", "l1"), out("a", "l", "l2"),
		out("b", "", "none1"), out("a", "", "none2"),
	})
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], sarama.ErrTopicAuthorizationFailed)
	require.ErrorIs(t, errs[2], ErrHeldBack)
	require.NoError(t, errs[3])
	require.NoError(t, errs[4])
	require.ErrorIs(t, errs[5], sarama.ErrTopicAuthorizationFailed)
	require.NoError(t, errs[6])
	require.Equal(t, []string{"k1", "l1", "l2", "none2"}, kafka.uuids())
	for _, err := range errs {
		require.False(t, permanent(err), "%v", err)
	}
}

// What is found out before anything is sent holds up its key all the same, and nothing else.
func TestFlaws(t *testing.T) {
	t.Parallel()
	large := out("a", "large", "large")
	large.Message.Payload = make([]byte, 1<<20)
	reserved := out("a", "reserved", "reserved")
	reserved.Message.Metadata.Set(kafka.UUIDHeaderKey, "x")
	for name, flawed := range map[string]outbox.Outgoing{
		"large":            large,
		"not to marshal":   reserved,
		"nil":              {Topic: "a", Key: "k"},
		"no topic":         out("", "k", "1"),
		"no topic's name":  out("a/b", "k", "1"),
		"too long a topic": out(strings.Repeat("a", 250), "k", "1"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kafka := newFakeKafka(map[string]int{"a": 1})
			errs := sinkTo(t, kafka).PublishBatch(t.Context(), []outbox.Outgoing{
				out("a", flawed.Key, "before"), flawed, out("a", flawed.Key, "behind"), out("a", "another", "another"),
			})
			require.NoError(t, errs[0])
			require.True(t, permanent(errs[1]), "%v", errs[1])
			require.ErrorIs(t, errs[2], ErrHeldBack)
			require.False(t, permanent(errs[2]))
			require.NoError(t, errs[3])
			require.Equal(t, []string{"before", "another"}, kafka.uuids())
			require.Zero(t, len(kafka.astray))
			require.NotContains(t, errs[1].Error(), "payload")
		})
	}
}

// A Partitioner is the user's code, and runs in the Sink's goroutine.
func TestAPanicOfThePartitionerIsTheMessagesError(t *testing.T) {
	t.Parallel()
	kafka := newFakeKafka(map[string]int{"a": 1})
	config := Config{Sarama: PublisherConfig()}
	config.Sarama.Producer.Partitioner = func(topic string) sarama.Partitioner {
		return tenants{sarama.NewHashPartitioner(topic)}
	}
	config.setDefaults()
	sink := newSink(kafka, config)
	defer sink.Close()
	errs := sink.PublishBatch(t.Context(), []outbox.Outgoing{out("a", "one", "1"), out("a", "none", "2"), out("a", "two", "3")})
	require.NoError(t, errs[0])
	require.ErrorContains(t, errs[1], "no tenant")
	require.NoError(t, errs[2])
	require.Len(t, kafka.log, 2)
}

type tenants struct{ sarama.Partitioner }

func (p tenants) Partition(m *sarama.ProducerMessage, n int32) (int32, error) {
	if key, _ := m.Key.Encode(); string(key) == "none" {
		panic("no tenant")
	}
	return p.Partitioner.Partition(m, n)
}

// One record among a thousand spoils the batch: it is found, in few requests, and is the only one refused.
func TestOneRecordSpoilsABatch(t *testing.T) {
	t.Parallel()
	kafka := newFakeKafka(map[string]int{"a": 1})
	kafka.refuses = func(uuid string) bool { return uuid == "617" }
	sink := sinkTo(t, kafka)
	var batch []outbox.Outgoing
	for i := range 1000 {
		batch = append(batch, out("a", fmt.Sprint("key", i%300), fmt.Sprint(i)))
	}
	errs := sink.PublishBatch(t.Context(), batch)
	for i, err := range errs {
		switch i {
		case 617:
			require.ErrorIs(t, err, sarama.ErrInvalidRecord)
			require.True(t, permanent(err))
		case 617 + 300: // the next of its key
			require.ErrorIs(t, err, ErrHeldBack)
		default:
			require.NoError(t, err)
		}
	}
	require.Less(t, len(kafka.calls), 40)
	require.Len(t, kafka.log, 998)
	require.Equal(t, int64(1), kafka.ids, "a refusal leaves the sequence where it was")

	kafka.calls = nil
	require.NoError(t, errors.Join(sink.PublishBatch(t.Context(), batch[:100])...))
	require.Len(t, kafka.calls, 1, "the search is over")
}

func TestSizes(t *testing.T) {
	t.Parallel()
	k := newFakeKafka(map[string]int{"a": 20, "b": 1})
	sink := sinkTo(t, k)
	var batch []outbox.Outgoing
	for i := range 100 {
		o := out([]string{"a", "b"}[i%2], fmt.Sprint("key", i), fmt.Sprint(i))
		o.Message.Payload = make([]byte, 300_000)
		batch = append(batch, o)
	}
	require.NoError(t, errors.Join(sink.PublishBatch(t.Context(), batch)...))
	most := 0
	for _, request := range k.bytes {
		sum := 0
		for _, bytes := range request {
			require.LessOrEqual(t, bytes, sink.config.Sarama.Producer.MaxMessageBytes)
			sum += bytes
			most = max(most, bytes)
		}
		require.LessOrEqual(t, sum, maxRound+20*batchOverhead)
	}
	require.Greater(t, most, 900_000)
	require.Less(t, len(k.bytes), 20)
}

// An answer is lost, and the repetition is refused since the topic's limit has changed meanwhile: it may be stored or not.
// The next record must not come under its number, or it would be taken for a repetition and lost.
func TestRefusedAfterALostAnswer(t *testing.T) {
	t.Parallel()
	k := newFakeKafka(map[string]int{"a": 1})
	k.fate = func(*batch) fate {
		k.fate = func(*batch) fate { k.maxBytes = 100; return arrives }
		return unanswered
	}
	sink := sinkTo(t, k)
	errs := sink.PublishBatch(t.Context(), []outbox.Outgoing{out("a", "k", "1")})
	require.ErrorIs(t, errs[0], sarama.ErrMessageSizeTooLarge)
	k.maxBytes, k.fate = 1000, nil
	errs = sink.PublishBatch(t.Context(), []outbox.Outgoing{out("a", "k", "2")})
	require.NoError(t, errs[0])
	require.Equal(t, []string{"1", "2"}, k.uuids())
}

// Lost requests and answers, as long as there are repetitions left, double nothing.
func TestRepetitionsAreKnown(t *testing.T) {
	t.Parallel()
	k := newFakeKafka(map[string]int{"a": 1})
	fates := []fate{unanswered, lost, late, noLeader, arrives}
	n := 0
	k.fate = func(*batch) fate { n++; return fates[(n-1)%len(fates)] }
	sink := sinkTo(t, k)
	for i := range 10 {
		require.NoError(t, sink.PublishBatch(t.Context(), []outbox.Outgoing{out("a", "k", fmt.Sprint(i))})[0])
		k.arrive()
	}
	require.Equal(t, strings.Fields("0 1 2 3 4 5 6 7 8 9"), k.uuids())
	require.Equal(t, int64(1), k.ids)
}

func TestSequencesEnd(t *testing.T) {
	t.Parallel()
	k := newFakeKafka(map[string]int{"a": 1})
	sink := sinkTo(t, k)
	where := place{"a", 0}
	k.producers[producerAt{where, 99}] = &sequences{next: math.MaxInt32 - 1}
	sink.producer.identity = &identity{id: 99, next: map[place]int32{where: math.MaxInt32 - 1}}
	require.NoError(t, errors.Join(sink.PublishBatch(t.Context(), []outbox.Outgoing{out("a", "k", "1")})...))
	require.NoError(t, errors.Join(sink.PublishBatch(t.Context(), []outbox.Outgoing{out("a", "k", "2"), out("a", "k", "3")})...))
	require.Equal(t, []string{"1", "2", "3"}, k.uuids())
	require.Equal(t, int64(1), k.ids)
}

// What is down is waited for once. After that it costs the others nothing but one attempt, until it is back.
func TestDownIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(k *fakeKafka) (back func(), attempts func() int){
		"a topic": func(k *fakeKafka) (func(), func() int) {
			delete(k.topics, "b")
			return func() { k.topics["b"] = 1 }, func() int { n := k.lookUps; k.lookUps = 1; return n - 1 }
		},
		"a partition": func(k *fakeKafka) (func(), func() int) {
			tries := 0
			k.fate = func(b *batch) fate {
				if b.topic == "b" {
					tries++
					return noLeader
				}
				return arrives
			}
			return func() { k.fate = nil }, func() int { n := tries; tries = 0; return n }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newFakeKafka(map[string]int{"a": 1, "b": 1})
			back, attempts := trouble(k)
			sink := sinkTo(t, k)
			send := func() error {
				errs := sink.PublishBatch(t.Context(), []outbox.Outgoing{out("a", "k", "1"), out("b", "l", "2")})
				require.NoError(t, errs[0])
				require.False(t, permanent(errs[1]))
				return errs[1]
			}
			attempts()
			require.Error(t, send())
			require.GreaterOrEqual(t, attempts(), 1+sink.config.Sarama.Producer.Retry.Max)
			require.Error(t, send())
			require.LessOrEqual(t, attempts(), 2)
			back()
			require.NoError(t, send())
		})
	}
}

// A partition that has been given up moves to another broker. The next attempt, though it is only one, has to go there.
func TestDownMoves(t *testing.T) {
	t.Parallel()
	k := newFakeKafka(map[string]int{"a": 1})
	moved := math.MaxInt // there is no leader before, and whoever has not asked since does not know it
	k.fate = func(*batch) fate {
		if k.refreshed > moved {
			return arrives
		}
		return noLeader
	}
	sink := sinkTo(t, k)
	send := func() error { return sink.PublishBatch(t.Context(), []outbox.Outgoing{out("a", "k", "1")})[0] }
	require.Error(t, send())
	moved = k.refreshed
	require.NoError(t, send())
}

// gate is a cluster whose produce can be held.
type gate struct {
	*fakeKafka
	entered chan []*batch
	open    chan struct{}
}

func newGate(k *fakeKafka) *gate {
	return &gate{k, make(chan []*batch, 100), make(chan struct{}, 100)}
}

func (g *gate) produce(batches []*batch) {
	g.entered <- batches
	<-g.open
	g.fakeKafka.produce(batches)
}

// A caller whose context ends does not wait any longer; what it has sent is not overtaken, and what it has not is left.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	g := newGate(newFakeKafka(map[string]int{"a": 1, "b": 1}))
	sink := sinkTo(t, g)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan []error)
	go func() {
		errs <- sink.PublishBatch(ctx, []outbox.Outgoing{out("a", "k", "1"), out("b", "k", "2"), out("a", "k", "3")})
	}()
	<-g.entered
	g.open <- struct{}{}
	<-g.entered // the second round: 1 is known to be taken
	cancel()
	got := <-errs
	require.NoError(t, got[0])
	require.ErrorIs(t, got[1], context.Canceled)
	require.ErrorIs(t, got[2], context.Canceled)

	go func() {
		errs <- sink.PublishBatch(t.Context(), []outbox.Outgoing{out("b", "k", "2"), out("b", "k", "3")})
	}()
	g.open <- struct{}{}
	require.Equal(t, "2", (<-g.entered)[0].items[0].uuid) // of the second call: the third round of the first is gone
	g.open <- struct{}{}
	require.NoError(t, errors.Join(<-errs...))
	require.Equal(t, []string{"1", "2", "2", "3"}, g.uuids())

	require.ErrorIs(t, sink.PublishBatch(ctx, []outbox.Outgoing{out("a", "k", "4")})[0], context.Canceled)
	require.Len(t, g.log, 4)
}

// What nobody waits for is not tried again.
func TestContextEndsInTrouble(t *testing.T) {
	t.Parallel()
	g := newGate(newFakeKafka(map[string]int{"a": 1}))
	g.fate = func(b *batch) fate {
		if b.items[0].uuid == "1" {
			return lost
		}
		return arrives
	}
	sink := sinkTo(t, g)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan []error)
	go func() { errs <- sink.PublishBatch(ctx, []outbox.Outgoing{out("a", "k", "1")}) }()
	<-g.entered
	cancel()
	require.ErrorIs(t, (<-errs)[0], context.Canceled)
	close(g.open)
	require.NoError(t, errors.Join(sink.PublishBatch(t.Context(), []outbox.Outgoing{out("a", "k", "2")})...))
	require.Len(t, g.calls, 2)
}

// What is published by many at the same time shares requests; what is wrong with one is not held against another.
func TestCallsShareRequests(t *testing.T) {
	t.Parallel()
	g := newGate(newFakeKafka(map[string]int{"a": 1}))
	g.refuses = func(uuid string) bool { return uuid == "7" }
	sink := sinkTo(t, g)
	var all sync.WaitGroup
	all.Go(func() { require.NoError(t, sink.Publish("a", message.NewMessage("first", nil))) })
	<-g.entered
	results := make([]error, 50)
	for i := range results {
		all.Go(func() {
			msg := message.NewMessage(fmt.Sprint(i), nil)
			msg.Metadata.Set(outbox.PartitionKeyKey, "the same")
			results[i] = sink.Publish("a", msg)
		})
	}
	for {
		sink.mu.Lock()
		n := len(sink.waiting)
		sink.mu.Unlock()
		if n == len(results) {
			break
		}
	}
	close(g.open)
	all.Wait()
	require.Len(t, g.calls[1], 1)
	require.Equal(t, 50, g.calls[1][0])
	for i, err := range results {
		require.Equal(t, i == 7, err != nil, "%d: %v", i, err)
	}
	require.True(t, permanent(results[7]))
}

func TestClose(t *testing.T) {
	t.Parallel()
	g := newGate(newFakeKafka(map[string]int{"a": 1, "b": 1}))
	sink := sinkTo(t, g)
	first, second, closed := make(chan []error), make(chan []error), make(chan error)
	go func() {
		first <- sink.PublishBatch(t.Context(), []outbox.Outgoing{out("a", "k", "1"), out("b", "k", "2")})
	}()
	<-g.entered
	go func() { second <- sink.PublishBatch(t.Context(), []outbox.Outgoing{out("a", "k", "3")}) }()
	go func() { closed <- sink.Close() }()
	<-sink.closing
	close(g.open)
	require.NoError(t, <-closed)
	got := <-first
	require.NoError(t, got[0])
	require.ErrorIs(t, got[1], ErrClosed)
	require.ErrorIs(t, (<-second)[0], ErrClosed)
	require.ErrorIs(t, sink.Publish("a", message.NewMessage("4", nil)), ErrClosed)
	require.NoError(t, sink.Close())
	require.Equal(t, []string{"1"}, g.uuids())
}

func TestPublish(t *testing.T) {
	t.Parallel()
	k := newFakeKafka(map[string]int{"a": 1})
	sink := sinkTo(t, k)
	require.NoError(t, sink.Publish("a"))
	require.Empty(t, sink.PublishBatch(t.Context(), nil))
	require.NoError(t, sink.Publish("a", message.NewMessage("1", nil), message.NewMessage("2", nil)))
	large := message.NewMessage("4", make([]byte, 1<<20))
	err := sink.Publish("a", message.NewMessage("3", nil), large)
	require.ErrorContains(t, err, `message "4" for topic "a"`)
	require.True(t, permanent(err))

	sink.config.Key = func(_ string, msg *message.Message) (string, error) { return "", errors.New("no key") }
	require.ErrorContains(t, sink.Publish("a", message.NewMessage("5", nil)), "no key")
	require.Equal(t, []string{"1", "2", "3"}, k.uuids())
}

func TestConfig(t *testing.T) {
	t.Parallel()
	sink, err := New([]string{"localhost:1"}, Config{})
	require.NoError(t, err)
	require.NoError(t, sink.Close())

	config := PublisherConfig()
	config.Version = sarama.V1_0_0_0
	config.Producer.RequiredAcks = sarama.WaitForLocal
	config.Producer.Idempotent = false
	config.Producer.Partitioner = nil
	config.Producer.Interceptors = []sarama.ProducerInterceptor{nil}
	_, err = New([]string{""}, Config{Sarama: config})
	for _, fault := range []string{"address", "Version", "RequiredAcks", "Idempotent", "Partitioner", "Interceptors"} {
		require.ErrorContains(t, err, fault)
	}
	_, err = New(nil, Config{})
	require.ErrorContains(t, err, "no brokers")
	require.NoError(t, SubscriberConfig().Validate())
}
