package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
)

func TestCheckSeesWhatMustNotBe(t *testing.T) {
	t.Parallel()
	paid := fact{order: "o", status: "paid", charges: 1, mails: 1}
	declined := fact{order: "o", status: "declined", poor: true}
	unknown := fact{order: "o", status: "unknown", charges: 1, doubtful: true}
	change := func(f fact, how func(*fact)) []fact { how(&f); return []fact{f} }

	for _, policy := range []dedupe.OnUnknown{dedupe.Repeat, dedupe.Probe, dedupe.Refuse} {
		require.NoError(t, check([]fact{paid, declined}, policy))
		for name, facts := range map[string][]fact{
			"charged twice":          change(paid, func(f *fact) { f.charges = 2 }),
			"paid, not charged":      change(paid, func(f *fact) { f.charges = 0 }),
			"two receipts":           change(paid, func(f *fact) { f.mails = 2 }),
			"no receipt":             change(paid, func(f *fact) { f.mails = 0 }),
			"charged, and declined":  change(paid, func(f *fact) { f.status = "declined" }),
			"charged without money":  change(declined, func(f *fact) { f.charges = 1 }),
			"receipt for nothing":    change(declined, func(f *fact) { f.mails = 1 }),
			"not dealt with":         change(paid, func(f *fact) { f.status = "placed" }),
			"not there":              change(paid, func(f *fact) { f.status = "" }),
			"unknown, charged twice": change(unknown, func(f *fact) { f.charges = 2 }),
		} {
			require.ErrorContains(t, check(append(facts, paid), policy), "o, status", name)
		}
	}

	require.NoError(t, check([]fact{unknown}, dedupe.Refuse))
	require.ErrorContains(t, check(change(unknown, func(f *fact) { f.mails = 1 }), dedupe.Refuse), "has a receipt")
	require.ErrorContains(t, check(change(paid, func(f *fact) { f.doubtful = true }), dedupe.Refuse), "nobody can know")
	require.NoError(t, check(change(paid, func(f *fact) { f.doubtful = true }), dedupe.Repeat))
	require.Error(t, check([]fact{unknown}, dedupe.Repeat))
	require.Error(t, checkResolved([]fact{paid, unknown}))
	require.NoError(t, checkResolved([]fact{paid, declined}))

	require.NoError(t, checkJournal([]fact{paid, unknown}, 1))
	require.ErrorContains(t, checkJournal([]fact{paid, unknown}, 0), "1 orders are unknown")
}
