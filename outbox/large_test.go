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
	for name, fail := range map[string]func(fixed chan struct{}) error{
		"they hang": func(fixed chan struct{}) error {
			<-fixed
			return nil
		},
		"they fail": func(fixed chan struct{}) error {
			select {
			case <-fixed:
				return nil
			default:
				return errors.New("no such topic")
			}
		},
	} {
		for _, keys := range []int{8, 160} {
			t.Run(fmt.Sprintf("%s, %d keys", name, keys), func(t *testing.T) {
				t.Parallel()
				pool := newPool(t)
				const large, small = 160, 50
				fixed := make(chan struct{})
				b := newBroker()
				b.refuse = func(topic string, msg *message.Message) error {
					if topic == "bad" {
						err := fail(fixed)
						msg.Payload = msg.Payload[:4]
						return err
					}
					return nil
				}
				_, err := pool.Exec(t.Context(), `insert into watermill_outbox (uuid, topic, key, metadata, payload)
					select i, 'bad', 'large-' || i % $2, json_build_object('partition_key', 'large-' || i % $2),
						rpad(lpad((i / $2)::text, 4, '0'), 1 << 20, 'x')::bytea
					from generate_series(0, $1 - 1) i`, large, keys)
				require.NoError(t, err)
				for i := range small {
					publish(t, pool, newMessage("small", fmt.Sprintf("%04d", i)))
				}
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
}
