package pathtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Two processes' worth of consumers share the groups, come and go in the middle of the work, and take over what the others
// have begun. There is one relay at work, and it changes too.
func TestRebalances(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := mixed(t, history("a", 20, 40))
	stopFirst := start(t, w.service())
	w.send(t, events[:len(events)/3]...)
	w.waitForEffects(t, 50)
	stopSecond := start(t, w.service())
	w.waitForMembers(t, 2)
	w.send(t, events[len(events)/3:2*len(events)/3]...)
	w.waitForEffects(t, 300)
	stopFirst()
	w.send(t, events[2*len(events)/3:]...)
	w.waitForEffects(t, 600)
	start(t, w.service())
	w.waitForMembers(t, 2)
	stopSecond()

	w.waitUntilSettled(t)
	w.check(t)
}

// A member that the group has given up goes on with the message that it has in hand, while another one gets the same message.
func TestMembersThrownOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(t, mixed(t, history("a", 10, 40))...)
	start(t, w.service())
	start(t, w.service())
	for i := range 5 {
		w.waitForEffects(t, 50*(i+1))
		for _, group := range consumers {
			fault := w.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: group, TopLevel: true, Err: kerr.UnknownMemberID})
			ctx, cancel := context.WithTimeout(t.Context(), Longest)
			require.NoError(t, fault.Wait(ctx, 1))
			cancel()
		}
	}
	w.waitUntilSettled(t)
	w.check(t)
}

func (w *world) waitForMembers(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Longest)
	defer cancel()
	for _, group := range consumers {
		_, err := w.Cluster.WaitGroupStable(ctx, group, n)
		require.NoError(t, err)
	}
}
