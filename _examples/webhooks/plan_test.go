package main

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The last event made for a card is its newest, whatever its time says: the expectation of a run is checked against that.
func TestOutcomeOfIsTheEndOfTheMadeHistory(t *testing.T) {
	t.Parallel()
	events, err := makeEvents(2000, rand.New(rand.NewPCG(1, 0)))
	require.NoError(t, err)
	var amount int64
	last := map[string]string{}
	for _, e := range events {
		var made cardEvent
		require.NoError(t, json.Unmarshal(e.body, &made))
		amount += made.Data.Amount
		last[made.Data.Card] = made.Data.Status
	}

	outcome, err := cardSource.outcomeOf(events)
	require.NoError(t, err)
	require.Equal(t, 2000, outcome.events)
	require.Equal(t, amount, outcome.amount)
	require.Len(t, outcome.cards, len(last))
	for card, newest := range outcome.cards {
		require.Equal(t, map[string]bool{last[card]: true}, newest.statuses, card)
	}
}

func TestOutcomeOfLeavesOpenWhatNothingDecides(t *testing.T) {
	t.Parallel()
	issue := func(id, action, time string) event {
		return event{id, []byte(`{"delivery_id":"` + id + `","event":"issues","payload":{"action":"` + action +
			`","repository":{"id":7},"issue":{"id":1,"updated_at":"` + time + `"}}}`)}
	}
	outcome, err := githubSource.outcomeOf([]event{
		issue("1", "opened", "2026-01-02T03:04:05Z"),
		issue("2", "labeled", "2026-01-02T03:04:06Z"),
		issue("3", "assigned", "2026-01-02T03:04:06Z"),
		issue("4", "edited", "2026-01-02T03:04:05Z"),
	})
	require.NoError(t, err)
	require.Equal(t, map[string]bool{"issues.labeled": true, "issues.assigned": true}, outcome.cards["issues/7/1"].statuses)
}

func TestPlanHoldsEveryEventAndEveryMishap(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 0))
	events, err := makeEvents(500, random)
	require.NoError(t, err)

	genuine := map[string]int{}
	var twins, lost, forged, swapped int
	latest := ""
	for _, step := range planDeliveries(events, random) {
		if len(step.deliveries) == 2 {
			twins++
			require.NotEqual(t, step.deliveries[0].endpoint, step.deliveries[1].endpoint)
		}
		for _, d := range step.deliveries {
			if d.forged != nil {
				forged++
				continue
			}
			genuine[d.event.id]++
			if d.lost {
				lost++
			}
			if d.event.id < latest && genuine[d.event.id] == 1 {
				swapped++ // its first delivery, after a newer event's
			}
			latest = max(latest, d.event.id)
		}
	}
	require.Len(t, genuine, len(events))
	for _, mishap := range []int{twins, lost, forged, swapped} {
		require.Positive(t, mishap)
	}
}

func TestShuffledPlanHoldsEachEventThreeTimes(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 0))
	events, err := makeEvents(50, random)
	require.NoError(t, err)
	times := map[string]int{}
	for _, step := range planShuffled(events, random) {
		times[step.deliveries[0].event.id]++
	}
	require.Len(t, times, len(events))
	for id, n := range times {
		require.Equal(t, 3, n, id)
	}
}
