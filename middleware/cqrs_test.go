package middleware_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	once "github.com/watermill-once/watermill-once/middleware"
)

type cardBlocked struct{ Card string }
type mailWanted struct{ To string }

// Handlers of Watermill's cqrs component find the transaction on their context, and an EventBus over the outbox publishes
// inside it.
func TestCQRSHandlersRunInside(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		broker := gochannel.NewGoChannel(gochannel.Config{}, nil)
		router, err := message.NewRouter(message.RouterConfig{}, nil)
		require.NoError(t, err)
		mw, err := once.Transactional(w.db, once.Config{})
		require.NoError(t, err)
		results := make(chan error, 10)
		router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				err := deliver(t, next, msg)
				results <- err
				return nil, nil
			}
		}, mw)

		bus, err := cqrs.NewEventBusWithConfig(newPublisher(t), cqrs.EventBusConfig{
			GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
			Marshaler:            cqrs.JSONMarshaler{},
		})
		require.NoError(t, err)
		processor, err := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
			GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return p.EventName, nil },
			SubscriberConstructor: func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				return broker, nil
			},
			Marshaler: cqrs.JSONMarshaler{},
		})
		require.NoError(t, err)
		fail := true
		require.NoError(t, processor.AddHandlers(cqrs.NewEventHandler("block-card", func(ctx context.Context, event *cardBlocked) error {
			require.NotEmpty(t, once.EventID(ctx))
			if err := exec(ctx, `insert into effects (event_id, note) values ($1, $2)`, once.EventID(ctx), event.Card); err != nil {
				return err
			}
			if err := bus.Publish(ctx, mailWanted{To: event.Card}); err != nil {
				return err
			}
			if fail {
				fail = false
				return context.DeadlineExceeded
			}
			return nil
		})))
		ended := make(chan error, 1)
		go func() { ended <- router.Run(context.Background()) }()
		<-router.Running()
		defer func() {
			require.NoError(t, router.Close())
			require.NoError(t, <-ended)
		}()

		event, err := cqrs.JSONMarshaler{}.Marshal(cardBlocked{Card: "card-1"})
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, broker.Publish("middleware_test.cardBlocked", event.Copy()))
		}
		failures := 0
		for range 3 {
			select {
			case err := <-results:
				if err != nil {
					failures++
				}
			case <-time.After(30 * time.Second):
				t.Fatal("no result")
			}
		}
		require.Equal(t, 1, failures)
		require.Equal(t, 1, w.effects())
		require.Equal(t, 1, w.outbox())
		require.Equal(t, 1, w.count(`select count(*) from watermill_outbox
			where topic = 'middleware_test.mailWanted' and payload = '{"To":"card-1"}' and metadata->>'name' = 'middleware_test.mailWanted'`))
	})
}
