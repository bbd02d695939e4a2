package main

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
)

// delivery is one request that the provider makes.
type delivery struct {
	event    event
	endpoint int    // which of the two
	forged   forger // nil: it is genuine
	lost     bool   // the answer does not reach the provider
	replay   bool   // somebody has pressed the button
}

// step is what the provider sends at one moment.
type step struct {
	place      float64 // in the order of all
	deliveries []delivery
}

// load gives the source, the distinct events and the deliveries of them.
func (c config) load() (source, []event, []step, error) {
	random := rand.New(rand.NewPCG(c.seed, 0))
	if c.input != "" {
		events, err := readEvents(c.input)
		if err == nil && len(events) == 0 {
			err = errors.New("no deliveries in it")
		}
		if err != nil {
			err = fmt.Errorf("-input %s: %w", c.input, err)
		}
		return githubSource, events, planShuffled(events, random), err
	}
	if c.events < 1 {
		return source{}, nil, nil, fmt.Errorf("-events %d: at least one is needed", c.events)
	}
	events, err := makeEvents(c.events, random)
	return cardSource, events, planDeliveries(events, random), err
}

// planDeliveries makes of a history what a provider makes of it on a bad day. Each event comes at least once. Beyond that, deliveries
// whose answer was lost are repeated, old ones are replayed, some come twice at once, all of them somewhat out of order; and
// somebody else sends forgeries.
func planDeliveries(events []event, random *rand.Rand) []step {
	var steps []step
	add := func(place float64, deliveries ...delivery) {
		steps = append(steps, step{place, deliveries})
	}
	chance := func(percent int) bool { return random.IntN(100) < percent }

	for i, e := range events {
		place := float64(i) + 30*random.Float64() // up to thirty events too late
		first := delivery{event: e, endpoint: random.IntN(2)}
		switch {
		case chance(30): // both endpoints at once
			twin := first
			twin.endpoint = 1 - first.endpoint
			add(place, first, twin)
		case chance(30): // and once more, soon
			repeated := first
			first.lost = true
			add(place, first)
			add(place+1+50*random.Float64(), repeated)
		default:
			add(place, first)
		}
		if chance(30) { // by hand, any time after
			add(place+1+float64(len(events)-i)*random.Float64(), delivery{event: e, endpoint: random.IntN(2)})
		}
		if chance(3) {
			add(place, delivery{event: e, endpoint: random.IntN(2), forged: forgers[random.IntN(len(forgers))]})
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.place, b.place) })
	return steps
}

// planShuffled sends each event three times, in any order.
func planShuffled(events []event, random *rand.Rand) []step {
	var steps []step
	for _, e := range events {
		for range 3 {
			steps = append(steps, step{deliveries: []delivery{{event: e, endpoint: random.IntN(2)}}})
		}
	}
	random.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	return steps
}

// planReplays sends n of the events once more, or all where there are fewer.
func planReplays(events []event, n int) []step {
	n = min(n, len(events))
	steps := make([]step, n)
	for i := range steps {
		steps[i].deliveries = []delivery{{event: events[i*len(events)/n]}}
	}
	return steps
}
