package middleware_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
)

// Round trips are what a handler's speed is made of. They are counted on the wire, after warm-up: the first use of a statement
// on a connection adds one that prepares it.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "sql-pgx"} {
		w := newWorld(t, driver)
		proxy := w.throughProxy()
		publisher := newPublisher(t)
		config := once.Config{Ordering: byMetadata, Outbox: publisher}
		dated := config
		dated.MaxAge, dated.Time = time.Hour, func(*message.Message) (time.Time, error) { return time.Now(), nil }
		old := config
		old.MaxAge, old.Time = time.Hour, func(*message.Message) (time.Time, error) { return time.Unix(1, 0), nil }
		cached := config
		cached.Dedupe = dedupe.Config{Cache: 10}

		produce := func(msg *message.Message, n int) {
			for i := range n {
				mail := newMessage(fmt.Sprintf("%s-mail-%d", msg.UUID, i))
				mail.SetContext(msg.Context())
				require.NoError(t, publisher.Publish("mails", mail))
			}
		}
		own := func(statements, mails int) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				for range statements {
					if _, err := apply(msg); err != nil {
						return nil, err
					}
				}
				produce(msg, mails)
				return nil, nil
			}
		}
		queued := func(msg *message.Message) ([]*message.Message, error) {
			for range 3 {
				if err := once.Queue(msg.Context(), `insert into effects (event_id) values ($1)`, once.EventID(msg.Context())); err != nil {
					return nil, err
				}
			}
			produce(msg, 1)
			return nil, nil
		}

		version := 0
		fresh := func(id string) *message.Message {
			version++
			return versioned(id, "card", fmt.Sprint(version))
		}
		for name, c := range map[string]struct {
			config   once.Config
			handler  message.HandlerFunc
			messages func(round int) *message.Message
			want     int
		}{
			"fresh, nothing of its own": {config, own(0, 0), func(r int) *message.Message { return fresh(fmt.Sprint("a", r)) }, 2},
			"fresh, one statement":      {config, own(1, 1), func(r int) *message.Message { return fresh(fmt.Sprint("b", r)) }, 3},
			"fresh, three, two mails":   {config, own(3, 2), func(r int) *message.Message { return fresh(fmt.Sprint("c", r)) }, 5},
			"fresh, queued":             {config, queued, func(r int) *message.Message { return fresh(fmt.Sprint("d", r)) }, 2},
			"fresh, with an age":        {dated, own(0, 0), func(r int) *message.Message { return fresh(fmt.Sprint("h", r)) }, 2},
			"too old":                   {old, own(0, 0), func(r int) *message.Message { return fresh(fmt.Sprint("i", r)) }, 2},
			"duplicate":                 {config, own(1, 1), func(int) *message.Message { return fresh("e") }, 2},
			"duplicate in the cache":    {cached, own(1, 1), func(int) *message.Message { return fresh("f") }, 0},
			"stale":                     {config, own(1, 1), func(r int) *message.Message { return versioned(fmt.Sprint("g", r), "card", "0") }, 2},
		} {
			h := w.consume(c.config, c.handler)
			const warmup, rounds = 3, 5
			for r := range warmup {
				require.Equal(t, name == "too old", errors.Is(deliver(t, h, c.messages(r)), once.ErrTooOld))
			}
			proxy.Reset()
			for r := range rounds {
				require.Equal(t, name == "too old", deliver(t, h, c.messages(warmup+r)) != nil)
			}
			require.Equal(t, rounds*c.want, proxy.RoundTrips(), "%s, %s", driver, name)
		}
	}
}
