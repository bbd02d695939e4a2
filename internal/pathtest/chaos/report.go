package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// report prints what happened, as a table in Markdown.
func (w *world) report(out io.Writer, e evidence, n notes, violations []violation, under, after time.Duration) {
	row := func(name string, value any) { fmt.Fprintf(out, "| %s | %v |\n", name, value) }
	distinct := map[string]bool{}
	for _, r := range e.Topics[topicEvents] {
		if r.Forged != forgedBad {
			distinct[r.UUID] = true
		}
	}
	var ends int
	for _, p := range w.processes {
		ends += p.ended()
	}

	fmt.Fprintf(out, "\n| run | |\n|---|---:|\n")
	row("seed", w.settings.seed)
	row("time under faults, and until all was at rest", fmt.Sprint(under.Round(time.Second), " + ", after.Round(time.Second)))
	row("events committed by producers", len(e.Produced))
	row("distinct events in the topic", len(distinct))
	row("transactions withdrawn after publishing", n.counts[withdrawn])
	row("deliveries to consumers", n.counts[delivered])
	row("effects", len(e.Effects))
	row("duplicates dropped", n.counts["duplicate"])
	row("stale events dropped", n.counts["stale"])
	row("attempts rolled back", n.counts["failed"])
	row("messages sent by relays", n.counts[sent])
	row("messages in the poison queue, all of them bad", len(e.Poisoned))
	for _, f := range frequencies(targets{}) {
		if why, unable := w.unable()[f.kind]; unable {
			row("fault: "+string(f.kind), "not run: "+why)
		} else {
			row("fault: "+string(f.kind), w.count[f.kind])
		}
	}
	row("processes that ended of their own accord, and were started again", ends)
	row("violations", len(violations))
	fmt.Fprintln(out)
}

// shownPerRule bounds what is printed where much is broken.
const shownPerRule = 3

// explain prints violations, each with the whole history of its event: what was noted about it, or about what it led to.
func (w *world) explain(out io.Writer, e evidence, violations []violation) error {
	byRule := map[rule][]violation{}
	for _, v := range violations {
		byRule[v.Rule] = append(byRule[v.Rule], v)
	}
	shown := map[string]bool{}
	for _, r := range slices.Sorted(maps.Keys(byRule)) {
		fmt.Fprintf(out, "VIOLATION: %s: %d times\n", r, len(byRule[r]))
		for _, v := range byRule[r][:min(shownPerRule, len(byRule[r]))] {
			fmt.Fprintf(out, "  event %s: %s\n", v.EventID, v.Text)
			if shown[v.EventID] {
				fmt.Fprintln(out, "    its history is above")
				continue
			}
			shown[v.EventID] = true
			ids := []string{v.EventID, v.UUID}
			for _, done := range e.Effects { // a message that left is known by its own id
				if done.EventID == v.EventID || done.UUID != "" && done.UUID == v.EventID {
					ids = append(ids, done.EventID, done.UUID)
				}
			}
			lines, err := histories(w.ledgers(), ids...)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "    %s\n", strings.Join(lines, "\n    "))
		}
	}
	fmt.Fprintf(out, "seed %d\n", w.settings.seed)
	return nil
}

func sabotageNames() (names []string) {
	for name := range sabotages {
		names = append(names, string(name))
	}
	slices.Sort(names)
	return names
}
