package outbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// All workers wait for one topic. After a while others stand in for them, and leave that topic alone until its calls have
// returned.
func TestATopicThatHangsLeavesTheOthersWorkers(t *testing.T) {
	t.Parallel()
	const workers, keys, good = 4, 20, 30
	tried, sent, goOn := make(chan string, 100), make(chan string, 100), make(chan struct{})
	logger := watermill.NewCaptureLogger()
	config := RelayConfig{Concurrency: workers}
	config.setDefaults()
	d := newDelivery(t.Context(), t.Context(), &Relay{config: config, logger: logger, broker: observed(func(topic string, msg *message.Message) error {
		if topic == "hangs" {
			tried <- msg.UUID
			<-goOn
		}
		sent <- topic
		return nil
	})}, nil)
	d.begin()
	now := time.Now()
	d.mu.Lock()
	d.lease = lease{now.Add(time.Hour)}
	d.shards[0] = false
	for i := range keys + good {
		row := &pending{offset: int64(i), key: fmt.Sprint(i), uuid: fmt.Sprint(i), topic: "hangs", metadata: []byte("{}")}
		if i >= keys {
			row.topic = "good"
		}
		d.lanes.admit(row)
	}
	// look is what the loop does from time to time.
	look := func(now time.Time) {
		d.watchCalls(now)
		d.start(now)
		d.recover()
		d.mu.Unlock()
	}
	look(now)
	for range workers {
		<-tried
	}
	d.mu.Lock()
	look(now.Add(stuckAfter / 2))
	require.Empty(t, sent)
	require.Empty(t, logger.Captured()[watermill.ErrorLogLevel])

	for range 3 {
		d.mu.Lock()
		look(now.Add(2 * stuckAfter))
	}
	for range good {
		require.Equal(t, "good", <-sent)
	}
	require.Empty(t, tried)
	said := logger.Captured()[watermill.ErrorLogLevel]
	require.Len(t, said, 1, "it is said once")
	require.Equal(t, []string{"hangs"}, said[0].Fields["topics"])

	close(goOn)
	for range workers {
		require.Equal(t, "hangs", <-sent)
	}
	d.workers.Wait()
	d.mu.Lock()
	require.Empty(t, d.calls)
	look(time.Now())
	for range keys - workers {
		require.Equal(t, "hangs", <-sent)
	}
	d.workers.Wait()
	require.Zero(t, d.standIns)
}

// A message that hangs when it is tried again keeps no other from being tried again.
func TestARetryThatHangsLeavesTheOtherRetriesTheirTurn(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			t.Parallel()
			tried, sent, goOn := make(chan string, 100), make(chan string, 100), make(chan struct{})
			config := RelayConfig{Concurrency: workers}
			config.setDefaults()
			d := newDelivery(t.Context(), t.Context(), &Relay{config: config, logger: watermill.NopLogger{}, broker: observed(func(topic string, msg *message.Message) error {
				if topic == "hangs" {
					tried <- msg.UUID
					<-goOn
				}
				sent <- topic
				return nil
			})}, nil)
			d.begin()
			now := time.Now()
			d.mu.Lock()
			d.lease = lease{now.Add(time.Hour)}
			d.shards[0] = false
			admit := func(offset int, topic string, tr *trouble) {
				d.lanes.admit(&pending{offset: int64(offset), key: fmt.Sprint(offset), uuid: fmt.Sprint(offset), topic: topic, metadata: []byte("{}"), trouble: tr})
			}
			admit(0, "hangs", new(trouble))
			d.watchCalls(now)
			d.start(now)
			d.mu.Unlock()
			<-tried

			// Somebody always has something new.
			d.mu.Lock()
			admit(1, "good", new(trouble))
			admit(2, "fresh", nil)
			d.watchCalls(now.Add(2 * stuckAfter))
			require.Positive(t, d.retries())
			d.start(now)
			d.mu.Unlock()
			require.ElementsMatch(t, []string{"good", "fresh"}, []string{<-sent, <-sent})

			close(goOn)
			d.workers.Wait()
			d.mu.Lock()
			d.watchCalls(time.Now())
			require.Zero(t, d.stoodFor)
			d.mu.Unlock()
		})
	}
}
