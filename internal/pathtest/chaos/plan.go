package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// fault is one thing that is done to the system.
type fault struct {
	At     time.Duration // after the start
	Kind   kind
	Target string        // a process, a consumer, a topic; "" where the kind says it all
	For    time.Duration // how long it lasts; for clock, how far it jumps, and which way
	N      int           // how many answers, records
	Draw   float64       // in [0, 1): which part of a topic
}

type kind string

const (
	kill          kind = "kill"           // kill -9 of a process, which is down for a while
	freeze        kind = "freeze"         // SIGSTOP, and later SIGCONT
	cut           kind = "cut"            // a process loses its connections to PostgreSQL
	loseCommit    kind = "lose COMMIT"    // PostgreSQL's answers to COMMIT get lost, with their connections
	slowCommit    kind = "slow COMMIT"    // they are late
	crashDatabase kind = "crash database" // PostgreSQL is stopped immediate, and starts again
	fillDisk      kind = "fill disk"      // PostgreSQL's tables cannot grow for a while
	jumpClock     kind = "jump clock"     // PostgreSQL's clock is set
	crashBroker   kind = "crash broker"   // kill -9 of the broker, which is down for a while
	rewind        kind = "rewind"         // a consumer group is killed, and set back to earlier offsets
	repeatRecords kind = "repeat records" // records are produced once more, the last of them first
	lateEvents    kind = "late events"    // events never seen before, with versions between those that were applied long ago
	badEvents     kind = "bad events"     // events that no consumer can read: they are for the poison queue
)

// frequency is a kind's share of a run. Kinds come in the order of the report.
type frequency struct {
	kind      kind
	perMinute float64
	targets   []string
	shortest  time.Duration // it lasts between that and longest
	longest   time.Duration
	atMost    int // that many records or answers
}

func frequencies(t targets) []frequency {
	return []frequency{
		{kind: kill, perMinute: 18, targets: t.processes, shortest: 10 * time.Millisecond, longest: 2 * time.Second},
		{kind: freeze, perMinute: 5, targets: t.processes, shortest: 100 * time.Millisecond, longest: 12 * time.Second},
		{kind: cut, perMinute: 10, targets: t.processes},
		{kind: loseCommit, perMinute: 10, targets: t.processes, shortest: time.Second, longest: 5 * time.Second, atMost: 5},
		{kind: slowCommit, perMinute: 5, targets: t.processes, shortest: 50 * time.Millisecond, longest: time.Second, atMost: 10},
		{kind: crashDatabase, perMinute: 2, targets: []string{""}, shortest: 10 * time.Millisecond, longest: 3 * time.Second},
		{kind: fillDisk, perMinute: 1, targets: []string{""}, shortest: 500 * time.Millisecond, longest: 3 * time.Second},
		{kind: jumpClock, perMinute: 2, targets: []string{""}, shortest: -20 * time.Second, longest: 20 * time.Second},
		{kind: crashBroker, perMinute: 1.5, targets: []string{""}, shortest: 10 * time.Millisecond, longest: 3 * time.Second},
		{kind: rewind, perMinute: 1, targets: t.groups, atMost: 300},
		{kind: repeatRecords, perMinute: 4, targets: t.topics, atMost: 100},
		{kind: lateEvents, perMinute: 4, targets: []string{""}, atMost: 30},
		{kind: badEvents, perMinute: 2, targets: []string{""}, atMost: 3},
	}
}

// targets are what faults can be aimed at.
type targets struct{ processes, groups, topics []string }

// makePlan draws the faults of a run: the same for the same seed, each kind at least once, and the longer the run the more.
func makePlan(seed uint64, length time.Duration, t targets) []fault {
	random := rand.New(rand.NewPCG(seed, 0))
	var plan []fault
	for _, f := range frequencies(t) {
		for range max(1, int(f.perMinute*length.Minutes()+0.5)) {
			plan = append(plan, fault{
				At:     time.Duration(random.Int64N(int64(length))),
				Kind:   f.kind,
				Target: f.targets[random.IntN(len(f.targets))],
				For:    f.shortest + time.Duration(random.Int64N(int64(f.longest-f.shortest)+1)),
				N:      1 + random.IntN(max(1, f.atMost)),
				Draw:   random.Float64(),
			})
		}
	}
	slices.SortStableFunc(plan, func(a, b fault) int { return cmp.Compare(a.At, b.At) })
	return plan
}
