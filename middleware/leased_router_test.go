package middleware_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
)

// The documented stack, in a Router over a gochannel.
func TestLeasedInTheDocumentedOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	broker := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 100, Persistent: true}, nil)
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	require.NoError(t, err)
	poison, err := wmiddleware.PoisonQueueWithFilter(broker, "poison", once.ShouldPoison)
	require.NoError(t, err)
	var mu sync.Mutex
	kinds := map[string][]once.Kind{}
	runs := map[string]int{}
	leased, err := once.Leased(w.pool, once.LeasedConfig{
		Effects: dedupe.EffectsConfig{Wait: 10 * time.Second},
		OnOutcome: func(_ context.Context, o once.Outcome) {
			mu.Lock()
			defer mu.Unlock()
			kinds[o.EventID] = append(kinds[o.EventID], o.Kind)
		}})
	require.NoError(t, err)
	e := w.operator("")
	router.AddMiddleware(poison, wmiddleware.Retry{MaxRetries: 3, InitialInterval: time.Millisecond, ShouldRetry: once.ShouldRetry}.Middleware, wmiddleware.Recoverer, leased)
	router.AddConsumerHandler("pay", "events", broker, func(msg *message.Message) error {
		mu.Lock()
		runs[msg.UUID]++
		n := runs[msg.UUID]
		mu.Unlock()
		key, _ := once.IdempotencyKey(msg.Context(), "charge")
		_, err := dedupe.Do(msg.Context(), e, key, msg.UUID, func(context.Context, string) (string, error) {
			switch {
			case msg.UUID == "declined":
				return "", dedupe.Final(errors.New("declined"))
			case msg.UUID == "panics" && n == 1:
				panic("oh")
			case msg.UUID == "times out" && n < 3:
				return "", errors.New("timeout")
			case msg.UUID == "never":
				return "", errors.New("timeout")
			case msg.UUID == "slow":
				time.Sleep(200 * time.Millisecond)
			}
			return "ok", nil
		})
		return err
	})
	poisoned, err := broker.Subscribe(t.Context(), "poison")
	require.NoError(t, err)
	go func() { _ = router.Run(context.Background()) }()
	<-router.Running()
	defer router.Close()
	for _, id := range []string{"declined", "panics", "times out", "never"} {
		require.NoError(t, broker.Publish("events", newMessage(id)))
	}
	for range 50 {
		require.NoError(t, broker.Publish("events", newMessage("slow")))
	}
	got := map[string]int{}
	for range 2 {
		m := <-poisoned
		got[m.UUID]++
		m.Ack()
	}
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(kinds["slow"]) == 50 && len(kinds["times out"]) == 3 && len(kinds["panics"]) == 2
	}, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, map[string]int{"declined": 1, "never": 1}, got)
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, map[string]int{"declined": 1, "panics": 2, "times out": 3, "never": 4, "slow": 1}, runs)
	require.Equal(t, []once.Kind{once.Failed}, kinds["declined"])
	require.Equal(t, []once.Kind{once.Failed, once.Fresh}, kinds["panics"])
	require.Equal(t, []once.Kind{once.Failed, once.Failed, once.Fresh}, kinds["times out"])
	require.Equal(t, []once.Kind{once.Failed, once.Failed, once.Failed, once.Failed}, kinds["never"])
}
