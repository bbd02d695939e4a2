package oncetest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/ordering"
)

// OutOfOrder is Config.OutOfOrder with the zero Config.
func OutOfOrder(t testing.TB, setup Setup, events []*message.Message) {
	t.Helper()
	Config{}.OutOfOrder(t, setup, events)
}

// OutOfOrder proves that events that overtake each other lead to the state of the right order. It delivers them in all orders that
// Config.Position tells apart: all of each entity's events where it has five at most, and else a sample, at most Config.Runs. An event
// that the handler refuses comes again behind the others. The rows of all tables must end as they do in the right order; columns
// that are other in every run do not count, nor do messages, since events that are overtaken may send none.
func (c Config) OutOfOrder(t testing.TB, setup Setup, events []*message.Message) {
	t.Helper()
	p, done := c.begin(t, "OutOfOrder", setup, events)
	defer done()
	h := p.history()
	if !p.steady(h.right, compareRows) {
		return
	}
	try := func(order []int) *finding { return p.outOfOrder(h, order) }
	for _, order := range h.orders(p.config.Runs, p.random) {
		if f := try(order); f != nil {
			order, f = shrink(order, f, try)
			p.report(f.what, f, p.deliveries(order))
			return
		}
	}
}

func (p *proof) outOfOrder(h history, order []int) *finding {
	p.t.Helper()
	calm, f := p.undisturbed(h.sorted(order))
	if f != nil {
		return f
	}
	return p.run(false, func(r *run) *finding {
		if f := r.inRounds(order); f != nil {
			return f
		}
		if changes := compareRows(calm, r.look()); len(changes) > 0 {
			return &finding{kind: "order", changes: changes, what: "events in another order lead to another state"}
		}
		return nil
	})
}

// inRounds delivers again what was refused, after the others, while that helps.
func (r *run) inRounds(order []int) *finding {
	r.t.Helper()
	for again := false; ; again = true {
		var (
			refused []int
			last    *finding
		)
		for _, event := range order {
			res := r.deliver(event, again)
			if res.misuse != "" {
				return r.refused(event, res)
			}
			if !res.acked {
				refused, last = append(refused, event), r.refused(event, res)
			}
		}
		if len(refused) == 0 || len(refused) == len(order) {
			return last
		}
		order = refused
	}
}

// history is the right order of the events.
type history struct {
	positions []ordering.Position
	right     []int
	places    map[string][]int // of an entity's events in right
	entities  []string
}

func (p *proof) history() history {
	p.t.Helper()
	h := history{positions: make([]ordering.Position, len(p.events)), right: p.all(), places: map[string][]int{}}
	for i, msg := range p.events {
		h.positions[i] = ordering.Position{Version: int64(i)}
		if p.config.Position != nil {
			position, err := ordering.Config{Position: p.config.Position}.PositionOf(msg)
			if err != nil {
				p.t.Fatalf("oncetest: %s: %v", p.name(i), err)
			}
			h.positions[i] = position
		}
		entity := h.positions[i].Entity
		if h.places[entity] == nil {
			h.entities = append(h.entities, entity)
		}
		h.places[entity] = append(h.places[entity], i)
	}
	h.right = h.sorted(h.right)
	for _, places := range h.places {
		for i := 1; i < len(places); i++ {
			if a, b := h.right[places[i-1]], h.right[places[i]]; h.compare(a, b) == 0 {
				p.t.Fatalf("oncetest: %s and %s have the same position, and nothing tells which comes first: add a tie-break "+
					"(ordering.PositionFunc.WithTieBreak), or leave one out", p.name(a), p.name(b))
			}
		}
	}
	return h
}

func (h history) compare(a, b int) int {
	x, y := h.positions[a], h.positions[b]
	return cmp.Or(cmp.Compare(x.Version, y.Version), cmp.Compare(x.TieBreak, y.TieBreak))
}

// sorted puts each entity's events into their right order, in the places that the entity has.
func (h history) sorted(order []int) []int {
	byEntity := map[string][]int{}
	for _, event := range order {
		entity := h.positions[event].Entity
		byEntity[entity] = append(byEntity[entity], event)
	}
	for _, events := range byEntity {
		slices.SortFunc(events, h.compare)
	}
	sorted := make([]int, len(order))
	for i, event := range order {
		entity := h.positions[event].Entity
		sorted[i], byEntity[entity] = byEntity[entity][0], byEntity[entity][1:]
	}
	return sorted
}

// maxExhaustive is the number of events whose orders are all tried.
const maxExhaustive = 5

// orders lists other orders than the right one, at most limit. Entities are permuted at the same time, each in its own places.
func (h history) orders(limit int, random *rand.Rand) [][]int {
	permuted := map[string][][]int{}
	most := 0
	for _, entity := range h.entities {
		permuted[entity] = permutations(len(h.places[entity]), limit, random)
		most = max(most, len(permuted[entity]))
	}
	orders := make([][]int, 0, most)
	for i := range most {
		order := slices.Clone(h.right)
		for _, entity := range h.entities {
			places, ways := h.places[entity], permuted[entity]
			if len(ways) == 0 {
				continue
			}
			for to, from := range ways[i%len(ways)] {
				order[places[to]] = h.right[places[from]]
			}
		}
		orders = append(orders, order)
	}
	return orders
}

// permutations of n things, but for the first; at most limit. The reverse order is always among them.
func permutations(n, limit int, random *rand.Rand) [][]int {
	if n < 2 {
		return nil
	}
	reverse := make([]int, n)
	for i := range reverse {
		reverse[i] = n - 1 - i
	}
	all := [][]int{reverse}
	if n <= maxExhaustive {
		rest := slices.DeleteFunc(arrange(n)[1:], func(p []int) bool { return slices.Equal(p, reverse) })
		return append(all, sample(rest, limit-1, random)...)
	}
	seen := map[string]bool{fmt.Sprint(reverse): true}
	for range limit - 1 {
		if p := random.Perm(n); !slices.IsSorted(p) && !seen[fmt.Sprint(p)] {
			seen[fmt.Sprint(p)] = true
			all = append(all, p)
		}
	}
	return all
}

// arrange lists all orders of n things, the sorted one first.
func arrange(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for first := range n {
		for _, rest := range arrange(n - 1) {
			p := []int{first}
			for _, i := range rest {
				if i >= first {
					i++
				}
				p = append(p, i)
			}
			all = append(all, p)
		}
	}
	return all
}
