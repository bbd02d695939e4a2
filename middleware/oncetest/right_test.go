package oncetest_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/middleware/oncetest"
	"github.com/watermill-once/watermill-once/ordering"
)

// A handler that adds up: every event counts, in any order.
func TestTheRightHandlerOfSumsPasses(t *testing.T) {
	t.Parallel()
	setup := right(once.Config{}, func(ctx context.Context, c change) ([]*message.Message, error) {
		mail := message.NewMessage("mail-of-"+c.ID, []byte(c.Card))
		return []*message.Message{mail}, pay(ctx, c)
	})
	config := oncetest.Config{Position: position, IgnoreColumns: []string{"cards.updated_at"}}
	config.Prove(t, setup, history()[:3])
}

// A handler that sets the newest state.
func TestTheRightHandlerOfStatePasses(t *testing.T) {
	t.Parallel()
	setup := right(once.Config{Ordering: ordering.Config{Position: position}}, func(ctx context.Context, c change) ([]*message.Message, error) {
		return nil, once.Queue(ctx, `update cards set status = $2, version = $3 where card = $1`, c.Card, c.Status, c.Version)
	})
	config := oncetest.Config{Position: position, MustSurviveAmnesia: true, Runs: 20}
	config.Prove(t, setup, history()[1:])
}
