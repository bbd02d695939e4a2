package main

import (
	"cmp"
	"fmt"
	"slices"
)

// evidence is all that the verdict rests on: tables and topics as they are at the end, and what processes were told.
type evidence struct {
	Produced []effect                     // the business rows of the producers, one for each event that they committed
	Effects  []effect                     // what the consumers' handlers committed
	Claimed  map[string]map[string]bool   // consumer -> the events that it has handled, or found stale
	Topics   map[string][]record          // what left; the records of a key in the order in which the broker took them
	Poisoned []poison                     // what is in the poison queue
	Told     map[string]map[string]string // consumer, or "producer" -> event -> who was told that it is committed
	Stuck    []string                     // what had not come to rest
}

// effect is what one event did to one entity. Of an entity they count up, N by N, in the order of their commits.
type effect struct {
	Consumer string // "producer" for what made the event itself
	EventID  string
	Entity   string
	Version  int64
	N        int64
	UUID     string // of the message that left with it, if one did
}

// key orders the messages that effects produce.
func (e effect) key() string { return messageKey(e.Consumer, e.Entity) }

func messageKey(consumer, entity string) string {
	if consumer == producer {
		return entity
	}
	return consumer + "/" + entity
}

// record is one of a topic.
type record struct {
	UUID    string
	Key     string
	Entity  string
	Version int64
	Forged  string // by the rig: a copy, an event of its own, or a bad one; "" for what came out of the outbox
}

// The kinds of forgeries.
const (
	forgedCopy  = "copy"
	forgedEvent = "event"
	forgedBad   = "bad"
)

// poison is a record of the poison queue.
type poison struct{ Consumer, UUID, Reason string }

// consumer says what is to be expected of one.
type consumer struct {
	Name  string
	Topic string // which it reads; its out goes to topicOut
	// Ordered: what is older than what the entity has is not applied.
	Ordered bool
	// Complete: every event is applied, since it is not ordered, or its events are in order by themselves.
	Complete bool
	// Produces: with each effect a message leaves.
	Produces bool
}

// violation is an invariant broken by an event.
type violation struct {
	Rule    rule
	EventID string
	UUID    string // of the message that left, if that is another
	Text    string
}

type rule string

const (
	lostCommit      rule = "a commit that was confirmed is gone"
	appliedTwice    rule = "an event has had two effects"
	neverApplied    rule = "an event has had no effect"
	appliedUnsent   rule = "an effect of what was never sent"
	wentBackwards   rule = "an entity went backwards"
	stayedBehind    rule = "an entity did not reach its newest version"
	neverLeft       rule = "a committed message has not left the outbox"
	leftUncommitted rule = "a message left that was not committed"
	outOfOrder      rule = "messages of a key left in another order than they were committed"
	wrongPoison     rule = "the poison queue holds what it should not"
	notPoisoned     rule = "a bad event is not in the poison queue"
	notSettled      rule = "it does not come to rest"
)

// check looks for the invariants:
//
//   - effects = distinct events
//   - no entity goes backwards
//   - every committed message leaves the outbox at least once, in key order
//   - nothing leaves that was not committed
//
// and that a commit stays once it was confirmed, and that the poison queue holds the bad events, and nothing else.
func check(e evidence, consumers []consumer) []violation {
	c := checker{evidence: e}
	for _, what := range e.Stuck {
		c.report(notSettled, "", "", "%s", what)
	}
	c.checkTold()
	for _, consumer := range consumers {
		c.checkEffects(consumer)
		c.checkPoison(consumer)
	}
	c.checkTopic(topicEvents, e.Produced)
	var out []effect
	for _, consumer := range consumers {
		if consumer.Produces {
			out = append(out, c.effectsOf(consumer.Name)...)
		}
	}
	c.checkTopic(topicOut, out)
	return c.violations
}

type checker struct {
	evidence
	violations []violation
}

func (c *checker) report(r rule, eventID, uuid, format string, args ...any) {
	c.violations = append(c.violations, violation{r, eventID, uuid, fmt.Sprintf(format, args...)})
}

func (c *checker) effectsOf(consumer string) (effects []effect) {
	for _, e := range c.Effects {
		if e.Consumer == consumer {
			effects = append(effects, e)
		}
	}
	return effects
}

func (c *checker) checkTold() {
	there := map[[2]string]bool{}
	for _, e := range slices.Concat(c.Produced, c.Effects) {
		there[[2]string{e.Consumer, e.EventID}] = true
	}
	for consumer, events := range c.Told {
		for id, who := range events {
			if !there[[2]string{consumer, id}] {
				c.report(lostCommit, id, "", "%s was told that it is committed", who)
			}
		}
	}
}

func (c *checker) checkEffects(of consumer) {
	sent := map[string]record{}
	newest := map[string]int64{}
	for _, r := range c.Topics[of.Topic] {
		if r.Forged == forgedBad {
			continue
		}
		sent[r.UUID] = r
		newest[r.Entity] = max(newest[r.Entity], r.Version)
	}

	applied := map[string]bool{}
	byEntity := map[string][]effect{}
	for _, e := range c.effectsOf(of.Name) {
		if applied[e.EventID] {
			c.report(appliedTwice, e.EventID, e.UUID, "by %s", of.Name)
		}
		applied[e.EventID] = true
		if _, was := sent[e.EventID]; !was {
			c.report(appliedUnsent, e.EventID, e.UUID, "by %s", of.Name)
		}
		byEntity[e.Entity] = append(byEntity[e.Entity], e)
	}
	for id := range sent {
		switch {
		case of.Complete && !applied[id]:
			c.report(neverApplied, id, "", "by %s", of.Name)
		case !applied[id] && !c.Claimed[of.Name][id]:
			c.report(neverApplied, id, "", "by %s, which has not found it stale either", of.Name)
		}
	}

	if !of.Ordered {
		return
	}
	for entity, version := range newest {
		effects := byEntity[entity]
		slices.SortFunc(effects, func(a, b effect) int { return cmp.Compare(a.N, b.N) })
		for i := 1; i < len(effects); i++ {
			if before, after := effects[i-1], effects[i]; after.Version <= before.Version {
				c.report(wentBackwards, after.EventID, after.UUID, "%s: %s from %d (event %s) to %d",
					of.Name, entity, before.Version, before.EventID, after.Version)
			}
		}
		if len(effects) == 0 {
			c.report(stayedBehind, "", "", "%s: %s has nothing, and not %d", of.Name, entity, version)
		} else if last := effects[len(effects)-1]; last.Version < version {
			c.report(stayedBehind, last.EventID, last.UUID, "%s: %s has %d, and not %d", of.Name, entity, last.Version, version)
		}
	}
}

func (c *checker) checkPoison(of consumer) {
	bad := map[string]bool{}
	for _, r := range c.Topics[of.Topic] {
		if r.Forged == forgedBad {
			bad[r.UUID] = true
		}
	}
	poisoned := map[string]bool{}
	for _, p := range c.Poisoned {
		if p.Consumer != of.Name || poisoned[p.UUID] {
			continue
		}
		poisoned[p.UUID] = true
		if !bad[p.UUID] {
			c.report(wrongPoison, p.UUID, "", "%s: %s", of.Name, p.Reason)
		}
	}
	for id := range bad {
		if !poisoned[id] {
			c.report(notPoisoned, id, "", "by %s", of.Name)
		}
	}
}

// checkTopic compares what has left with what was committed, both key by key.
func (c *checker) checkTopic(topic string, committed []effect) {
	left := map[string][]string{} // the first copies
	has := map[string]bool{}
	for _, r := range c.Topics[topic] {
		if r.Forged == "" && !has[r.UUID] {
			has[r.UUID] = true
			left[r.Key] = append(left[r.Key], r.UUID)
		}
	}

	byKey := map[string][]effect{}
	known := map[string]bool{}
	for _, e := range committed {
		if !has[e.UUID] {
			c.report(neverLeft, e.EventID, e.UUID, "%s, key %s", topic, e.key())
		} else if !known[e.UUID] {
			byKey[e.key()] = append(byKey[e.key()], e)
		}
		known[e.UUID] = true
	}
	for key, uuids := range left {
		for _, uuid := range uuids {
			if !known[uuid] {
				c.report(leftUncommitted, uuid, "", "%s, key %s", topic, key)
			}
		}
		uuids = slices.DeleteFunc(uuids, func(uuid string) bool { return !known[uuid] })
		effects := byKey[key]
		slices.SortFunc(effects, func(a, b effect) int { return cmp.Compare(a.N, b.N) })
		for i, e := range effects {
			if i >= len(uuids) || e.UUID != uuids[i] {
				c.report(outOfOrder, e.EventID, e.UUID, "%s, key %s: number %d that was committed is not number %d that left", topic, key, i+1, i+1)
				break
			}
		}
	}
}
