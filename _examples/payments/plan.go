package main

import (
	"fmt"
	"math/rand/v2"
)

// fault is what the first charge of an order meets.
type fault int

const (
	none         fault = iota
	busy               // 503, before anything is done
	errorBefore        // 500, and no charge
	errorAfter         // 500, and a charge
	silent             // a charge, and no answer
	hangUp             // a charge, and the connection is closed
	killBefore         // the worker is killed, and no charge
	killAfter          // the worker is killed, and a charge
	killAnswered       // the worker is killed with the answer on its way
)

// doubtful: whoever called cannot tell whether there was a charge.
func (f fault) doubtful() bool {
	switch f {
	case errorBefore, errorAfter, silent, hangUp, killBefore, killAfter:
		return true
	}
	return false
}

// planned is an order and what goes wrong with it.
type planned struct {
	order
	declined bool // its card has no money
	fault    fault
}

// plan makes the same orders from the same seed: some meet a fault, and for some others a worker is killed.
func plan(seed uint64, count, kills int) []planned {
	random := rand.New(rand.NewPCG(seed, 0))
	all := make([]planned, count)
	for i := range all {
		all[i] = planned{
			order:    order{ID: fmt.Sprintf("order-%04d", i+1), Amount: 100 + random.Int64N(20_000)},
			declined: random.IntN(5) == 0,
		}
		if random.IntN(5) < 2 {
			all[i].fault = busy + fault(random.IntN(5))
		}
	}
	for n, i := range random.Perm(count)[:kills] {
		all[i].fault = killBefore + fault(n%3)
	}
	return all
}
