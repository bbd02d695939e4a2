package main

// topics are where messages travel.
type topics struct {
	// The provider knows two endpoints, each with a topic of its own: two ways for one event to arrive, at the same moment too.
	incoming []string

	notices string // from cards to mails
	poison  string // what cannot be handled
}

// topicsOf gives each run topics of its own, so that a broker that stays has nothing of another run in them.
func topicsOf(run string) topics {
	return topics{
		incoming: []string{run + "-eu", run + "-us"},
		notices:  run + "-notices",
		poison:   run + "-poison",
	}
}
