package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// sound is the evidence of a run in which all went well: events a1 to a3 of account-1, which left in that order, a2 twice; late, an event
// between a1 and a2 that came last; and one that nobody could read.
func sound() evidence {
	e := evidence{
		Produced: []effect{
			{Consumer: producer, EventID: "a1", Entity: "account-1", Version: 10, N: 1, UUID: "a1"},
			{Consumer: producer, EventID: "a3", Entity: "account-1", Version: 30, N: 3, UUID: "a3"},
			{Consumer: producer, EventID: "a2", Entity: "account-1", Version: 20, N: 2, UUID: "a2"},
		},
		Claimed: map[string]map[string]bool{
			"totals": {"a1": true, "a2": true, "a3": true, "late": true}, "state": {"a1": true, "a2": true, "a3": true, "late": true},
		},
		Topics: map[string][]record{topicEvents: {
			{UUID: "a1", Key: "account-1", Entity: "account-1", Version: 10},
			{UUID: "a2", Key: "account-1", Entity: "account-1", Version: 20},
			{UUID: "bad", Key: "account-1", Forged: forgedBad},
			{UUID: "a3", Key: "account-1", Entity: "account-1", Version: 30},
			{UUID: "a2", Key: "account-1", Entity: "account-1", Version: 20},
			{UUID: "a1", Key: "account-1", Entity: "account-1", Version: 10, Forged: forgedCopy},
			{UUID: "late", Key: "account-1", Entity: "account-1", Version: 15, Forged: forgedEvent},
		}},
		Poisoned: []poison{{Consumer: "totals", UUID: "bad"}, {Consumer: "state", UUID: "bad"}, {Consumer: "state", UUID: "bad"}},
		Told: map[string]map[string]string{
			producer: {"a1": "producer-1", "a3": "producer-2"}, "state": {"a1": "state-1"}, "downstream": {"totals-a1": "downstream-1"},
		},
	}
	sequence := int64(100)
	apply := func(consumer string, n int64, id string, version int64) {
		uuid := consumer + "-" + id
		done := effect{Consumer: consumer, EventID: id, Entity: "account-1", Version: version, N: n, UUID: uuid}
		sequence++
		e.Effects = append(e.Effects, done,
			effect{Consumer: "downstream", EventID: uuid, Entity: done.key(), Version: sequence, N: n})
		e.Topics[topicOut] = append(e.Topics[topicOut], record{UUID: uuid, Key: done.key(), Entity: done.key(), Version: sequence})
	}
	apply("totals", 1, "a1", 10)
	apply("totals", 2, "a2", 20)
	apply("state", 1, "a1", 10)
	apply("state", 2, "a2", 20)
	apply("state", 3, "a3", 30)
	apply("totals", 3, "a3", 30)
	apply("totals", 4, "late", 15)
	return e
}

func TestSound(t *testing.T) {
	t.Parallel()
	require.Empty(t, check(sound(), consumers))
	require.Empty(t, check(evidence{}, consumers))
}

func TestViolations(t *testing.T) {
	t.Parallel()
	remove := func(of *[]effect, consumer, id string) {
		var rest []effect
		for _, e := range *of {
			if e.Consumer != consumer || e.EventID != id {
				rest = append(rest, e)
			}
		}
		*of = rest
	}
	for name, test := range map[string]struct {
		spoil func(e *evidence)
		want  []violation // but for their texts
	}{
		"a producer's commit is gone": {
			func(e *evidence) { remove(&e.Produced, producer, "a3") },
			[]violation{{Rule: lostCommit, EventID: "a3"}, {Rule: leftUncommitted, EventID: "a3"}},
		},
		"a consumer's commit is gone": {
			func(e *evidence) { e.Told["state"]["a9"] = "state-2" },
			[]violation{{Rule: lostCommit, EventID: "a9"}},
		},
		"applied twice": {
			func(e *evidence) {
				e.Effects = append(e.Effects, effect{Consumer: "totals", EventID: "a1", Entity: "account-1", Version: 10, N: 5, UUID: "totals-a1"})
			},
			[]violation{{Rule: appliedTwice, EventID: "a1", UUID: "totals-a1"}},
		},
		"never applied, and not even claimed": {
			func(e *evidence) { delete(e.Claimed["state"], "late") },
			[]violation{{Rule: neverApplied, EventID: "late"}},
		},
		"claimed, never applied": {
			func(e *evidence) { remove(&e.Effects, "downstream", "state-a1"); delete(e.Told, "downstream") },
			[]violation{{Rule: neverApplied, EventID: "state-a1"}},
		},
		"applied, never sent": {
			func(e *evidence) {
				e.Effects = append(e.Effects, effect{Consumer: "downstream", EventID: "x", Entity: "x", Version: 1, N: 1})
			},
			[]violation{{Rule: appliedUnsent, EventID: "x"}},
		},
		"backwards": {
			func(e *evidence) {
				e.Effects = append(e.Effects, effect{Consumer: "state", EventID: "late", Entity: "account-1", Version: 15, N: 4, UUID: "state-late"})
				e.Topics[topicOut] = append(e.Topics[topicOut],
					record{UUID: "state-late", Key: "state/account-1", Entity: "state/account-1", Version: 200})
				e.Effects = append(e.Effects, effect{Consumer: "downstream", EventID: "state-late", Entity: "state/account-1", Version: 200, N: 4})
			},
			[]violation{{Rule: wentBackwards, EventID: "late", UUID: "state-late"}, {Rule: stayedBehind, EventID: "late", UUID: "state-late"}},
		},
		"behind": {
			func(e *evidence) {
				e.Topics[topicEvents] = append(e.Topics[topicEvents],
					record{UUID: "a4", Key: "account-1", Entity: "account-1", Version: 35, Forged: forgedEvent})
				e.Claimed["state"]["a4"] = true
			},
			[]violation{{Rule: neverApplied, EventID: "a4"}, {Rule: stayedBehind, EventID: "a3", UUID: "state-a3"}},
		},
		"never left": {
			func(e *evidence) {
				e.Produced = append(e.Produced, effect{Consumer: producer, EventID: "a4", Entity: "account-1", Version: 40, N: 4, UUID: "a4"})
			},
			[]violation{{Rule: neverLeft, EventID: "a4", UUID: "a4"}},
		},
		"left only as a copy of the rig's": {
			func(e *evidence) { e.Topics[topicEvents][0].Forged = forgedCopy },
			[]violation{{Rule: neverLeft, EventID: "a1", UUID: "a1"}},
		},
		"left, not committed": {
			func(e *evidence) {
				e.Topics[topicOut] = append(e.Topics[topicOut], record{UUID: "x", Key: "totals/account-1", Entity: "totals/account-1", Version: 1})
				e.Effects = append(e.Effects, effect{Consumer: "downstream", EventID: "x", Entity: "x", Version: 1, N: 1})
			},
			[]violation{{Rule: leftUncommitted, EventID: "x"}},
		},
		"out of order": {
			func(e *evidence) {
				events := e.Topics[topicEvents]
				events[0], events[1] = events[1], events[0]
			},
			[]violation{{Rule: outOfOrder, EventID: "a1", UUID: "a1"}},
		},
		"a good event is poisoned": {
			func(e *evidence) { e.Poisoned = append(e.Poisoned, poison{Consumer: "totals", UUID: "a2"}) },
			[]violation{{Rule: wrongPoison, EventID: "a2"}},
		},
		"a bad one is not": {
			func(e *evidence) { e.Poisoned = e.Poisoned[1:] },
			[]violation{{Rule: notPoisoned, EventID: "bad"}},
		},
		"restless": {
			func(e *evidence) { e.Stuck = []string{"the outbox holds 1 message"} },
			[]violation{{Rule: notSettled}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := sound()
			test.spoil(&e)
			found := check(e, consumers)
			for i := range found {
				require.NotEmpty(t, found[i].Text)
				found[i].Text = ""
			}
			require.ElementsMatch(t, test.want, found)
		})
	}
}
