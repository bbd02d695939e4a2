package outbox_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/outbox"
)

// Large messages fill memory before they are many. Those that hang, or whose topic fails, hold up no others, and leave in
// order in the end.
func TestLargeMessagesThatCannotBeSentArePassed(t *testing.T) {
	t.Parallel()
	hang := func(fixed chan struct{}) error {
		<-fixed
		return nil
	}
	refuse := func(fixed chan struct{}) error {
		select {
		case <-fixed:
			return nil
		default:
			return errors.New("no such topic")
		}
	}
	for _, c := range []struct {
		name string
		keys int
		bad  func(fixed chan struct{}) error
	}{{"few keys hang", 8, hang}, {"many keys hang", 160, hang}, {"few keys fail", 8, refuse}, {"many keys fail", 700, refuse}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			const large, small = 700, 50
			fixed := make(chan struct{})
			b := newBroker()
			b.refuse = func(topic string, msg *message.Message) error {
				if topic == "bad" {
					err := c.bad(fixed)
					msg.Payload = msg.Payload[:4]
					return err
				}
				return nil
			}
			_, err := pool.Exec(t.Context(), `insert into watermill_outbox (uuid, topic, key, metadata, payload)
				select i, 'bad', 'large-' || i % $2, json_build_object('partition_key', 'large-' || i % $2),
					(lpad((i / $2)::text, 4, '0') || repeat('x', 1 << 18))::bytea
				from generate_series(0, $1 - 1) i`, large, c.keys)
			require.NoError(t, err)
			msgs := make([]*message.Message, small)
			for i := range msgs {
				msgs[i] = newMessage("small", fmt.Sprintf("%04d", i))
			}
			publish(t, pool, msgs...)
			startRelay(t, pool, b, outbox.RelayConfig{Concurrency: 200})
			b.wait(t, small)
			close(fixed)
			b.wait(t, small+large)
			drained(t, pool)
			next := make(map[string]int)
			for _, s := range b.all() {
				require.Equal(t, fmt.Sprintf("%04d", next[s.key()]), s.Payload, s.key())
				next[s.key()]++
			}
		})
	}
}
