package outbox

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"
)

// outage has a broker refuse the messages of some keys, every half minute, until one is parked or it is over. It gives how
// long that took.
func outage(t *testing.T, keys int, lasts time.Duration) (parkedAfter time.Duration) {
	t.Helper()
	config := RelayConfig{}
	config.setDefaults()
	d := newDelivery(t.Context(), t.Context(), &Relay{config: config, logger: watermill.NopLogger{}}, nil)
	d.begin()
	d.shards[0] = false
	began := time.Now()
	for now := began; now.Sub(began) < lasts; now = now.Add(longestBackoff) {
		for i := range keys {
			offset := int64(i)
			d.lanes.admit(&pending{offset: offset, key: fmt.Sprint(i), uuid: fmt.Sprint(i), trouble: d.troubles.byOffset[offset]})
		}
		for range keys {
			rows := d.lanes.next(nil, 1, 1, 1)
			require.Len(t, rows, 1)
			rows[0].began = d.accepted
			d.returned(rows, []error{errors.New("connection refused")}, now)
		}
		for _, n := range d.notes {
			if n.parked {
				return now.Sub(began)
			}
		}
		d.notes = nil
	}
	return lasts
}

func TestAnOutageParksALoneMessageAfterADay(t *testing.T) {
	t.Parallel()
	require.InDelta(t, 25*time.Hour, outage(t, 1, 48*time.Hour), float64(time.Minute))
}

func TestAnOutageParksNothingWhileSeveralKeysWait(t *testing.T) {
	t.Parallel()
	const week = 7 * 24 * time.Hour
	require.Equal(t, week, outage(t, 2, week))
}
