package main

// sabotage is a fault planted in the system under test, by which the rig shows that it can catch: each breaks an invariant in the
// way of a classic mistake.
type sabotage string

const (
	noDedupe     sabotage = "no dedupe"     // consumers remember no events
	noOrdering   sabotage = "no ordering"   // they do not compare versions
	outside      sabotage = "outside"       // they work outside of the transaction
	dualWrite    sabotage = "dual write"    // producers publish to the broker within their transaction
	deleteFirst  sabotage = "delete first"  // relays delete before they publish
	poisonAll    sabotage = "poison all"    // every error poisons, outages too
	forgetsOrder sabotage = "forgets order" // relays ignore keys
)

// sabotages tells which invariant each breaks.
var sabotages = map[sabotage]rule{
	noDedupe:     appliedTwice,
	noOrdering:   wentBackwards,
	outside:      appliedTwice,
	dualWrite:    leftUncommitted,
	deleteFirst:  neverLeft,
	poisonAll:    wrongPoison,
	forgetsOrder: outOfOrder,
}
