package kafkasink

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/watermill-once/watermill-once/outbox"
)

// A relay sends messages of a few keys in several topics, over a Kafka that does all it may do: lose requests and answers,
// take requests late, forget producers, refuse records, refuse batches. Whatever happens: nothing is said to be taken that is
// not stored, no harmless message is refused for good, and what a consumer sees of a key, repeats dropped, is in order.
func TestOrderModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		kafka := newFakeKafka(map[string]int{"a": 3, "b": 1, "c": 2})
		fates := rapid.SliceOfN(rapid.SampledFrom([]fate{
			arrives, arrives, unanswered, lost, late, overtaken, noLeader, forgotten, forbidden,
		}), 0, 60).Draw(t, "fates")
		kafka.fate = func(*batch) fate {
			if len(fates) == 0 {
				return arrives
			}
			f := fates[0]
			fates = fates[1:]
			return f
		}
		refused := map[string]bool{}
		kafka.refuses = func(uuid string) bool { return refused[uuid] }
		kafka.maxBytes = rapid.SampledFrom([]int{1 << 30, 400}).Draw(t, "broker's limit") // less than ours: a few records

		config := Config{Sarama: PublisherConfig()}
		config.setDefaults()
		config.Sarama.Producer.Retry.Max = rapid.IntRange(1, 3).Draw(t, "retries")
		config.Sarama.Producer.Retry.Backoff = 0
		config.Sarama.Producer.MaxMessageBytes = rapid.SampledFrom([]int{1 << 20, 600}).Draw(t, "our limit")
		sink := newSink(kafka, config)
		defer sink.Close()

		var open []outbox.Outgoing
		for i := range rapid.IntRange(1, 60).Draw(t, "messages") {
			out := outbox.Outgoing{
				Topic:   rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "topic"),
				Key:     rapid.SampledFrom([]string{"k", "l", "m", "n", ""}).Draw(t, "key"),
				Message: message.NewMessage(fmt.Sprint(i), nil),
			}
			switch rapid.IntRange(0, 15).Draw(t, "flaw") {
			case 0:
				refused[out.Message.UUID] = true
			case 1:
				refused[out.Message.UUID] = true
				out.Message.Payload = make([]byte, 2<<20)
			}
			open = append(open, out)
		}

		want, parked := map[string][]string{}, map[string]bool{}
		keys := map[string]string{}
		for _, out := range open {
			keys[out.Message.UUID] = out.Key
			if !refused[out.Message.UUID] {
				want[out.Key] = append(want[out.Key], out.Message.UUID)
			}
		}
		for pass := 0; len(open) > 0; pass++ {
			require.Less(t, pass, 1000, "it comes to an end")
			n := rapid.IntRange(1, len(open)).Draw(t, "batch")
			errs := sink.PublishBatch(t.Context(), open[:n])
			if rapid.Bool().Draw(t, "late ones arrive") {
				kafka.arrive()
			}
			require.Len(t, errs, n)
			rest := []outbox.Outgoing{}
			for i, out := range open[:n] {
				uuid := out.Message.UUID
				var permanent interface{ Permanent() bool }
				switch {
				case errs[i] == nil:
					require.Contains(t, kafka.uuids(), uuid)
				case errors.As(errs[i], &permanent) && permanent.Permanent():
					parked[uuid] = true
				default:
					rest = append(rest, out)
				}
			}
			open = append(rest, open[n:]...)
		}
		require.Equal(t, refused, parked)

		seen, got := map[string]bool{}, map[string][]string{}
		for _, uuid := range kafka.uuids() {
			if !seen[uuid] {
				seen[uuid] = true
				got[keys[uuid]] = append(got[keys[uuid]], uuid)
			}
		}
		for _, key := range []string{"k", "l", "m", "n"} {
			require.Equal(t, want[key], got[key], "key %s", key)
		}
		require.ElementsMatch(t, want[""], got[""])
	})
}
