package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

// SweeperConfig says how long what is kept, by the database's clock. The zero value keeps everything for ever, which is the
// right choice until the tables are a burden.
type SweeperConfig struct {
	// ClaimsAge is how long a claim is kept after its event was handled. A delivery that comes after that is handled once more: see
	// Config.MaxAge, which refuses it instead. Defaults to 0: for ever.
	ClaimsAge time.Duration

	// VersionsAge is how long an entity's version is kept after its last event. What is lost: any event of the entity passes for the
	// newest then, also one that is older than the last one applied. It may overwrite newer state, or bring back what was deleted. Only for
	// entities that are surely dead by then, and with Config.MaxAge. Defaults to 0: for ever.
	VersionsAge time.Duration

	// EffectsAge is how long an effect is kept that is done, or has failed for good: its outcome, and with it the knowledge that the
	// call was made. A caller who comes after that makes it again. Effects in any other state are never swept. Defaults to 0: for ever.
	EffectsAge time.Duration

	// SentAge is how long a sent message stays in an outbox whose relay has KeepSent. Defaults to 0: for ever.
	SentAge time.Duration

	// BrokerRetention is how long the broker may deliver an event after it was published first: what its topics keep, with the
	// longest that a dead or paused subscriber may hold it back. Must be set where there is an age of claims, versions or effects, none of
	// which may be shorter.
	BrokerRetention time.Duration

	// Claims, Versions, Effects and Outboxes tell whose tables are swept, where there are several or other than the default
	// ones. Without an age beside it each has no effect. Each defaults to the one of the default name.
	Claims   []dedupe.Config
	Versions []ordering.Config
	Effects  []dedupe.EffectsConfig
	Outboxes []*outbox.Publisher

	// BatchSize is how many rows a transaction deletes at most. It bounds how long their locks are held, and what a batch writes to the
	// log. Defaults to 100.
	BatchSize int

	// Pause is the time between two batches of a pass, in which the handlers have the database to themselves. Defaults to 20 ms.
	Pause time.Duration

	// Delay is how long Run waits before its first pass, so that a restart has no sweep on top; up to as much is added at random.
	// Defaults to 1 minute.
	Delay time.Duration

	// Interval is the time from the end of a pass to the begin of the next; up to a tenth is added at random. A pass reads the whole
	// table, at the pace that Pause sets. Defaults to 6 hours.
	Interval time.Duration

	// OnSweep is called after each table of a pass. It is the hook for metrics.
	OnSweep func(ctx context.Context, s Swept)
}

func (c *SweeperConfig) setDefaults() {
	if c.Claims == nil {
		c.Claims = []dedupe.Config{{}}
	}
	if c.Versions == nil {
		c.Versions = []ordering.Config{{}}
	}
	if c.Effects == nil {
		c.Effects = []dedupe.EffectsConfig{{}}
	}
	c.BatchSize = cmp.Or(c.BatchSize, 100)
	c.Pause = cmp.Or(c.Pause, 20*time.Millisecond)
	c.Delay = cmp.Or(c.Delay, time.Minute)
	c.Interval = cmp.Or(c.Interval, 6*time.Hour)
}

// Validate reports all faults at once.
func (c SweeperConfig) Validate() error {
	c.setDefaults()
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	for _, age := range []struct {
		name  string
		age   time.Duration
		after string // what a delivery after the sweep would do; "": nothing
	}{
		{"ClaimsAge", c.ClaimsAge, "a redelivery after the sweep would be handled twice"},
		{"VersionsAge", c.VersionsAge, "an old event that is delivered after the sweep would overwrite newer state"},
		{"EffectsAge", c.EffectsAge, "a redelivery after the sweep would make the call again"},
		{"SentAge", c.SentAge, ""},
	} {
		switch {
		case age.age < 0:
			fault("%s is negative: %v", age.name, age.age)
		case age.age == 0 || age.after == "":
		case c.BrokerRetention == 0:
			fault("%s needs BrokerRetention: %s", age.name, age.after)
		case age.age < c.BrokerRetention:
			fault("%s (%v) is shorter than BrokerRetention (%v): %s", age.name, age.age, c.BrokerRetention, age.after)
		}
	}
	if c.BrokerRetention < 0 {
		fault("BrokerRetention is negative: %v", c.BrokerRetention)
	}
	for _, config := range c.Claims {
		if err := config.Validate(); err != nil {
			fault("Claims: %w", err)
		}
	}
	for _, config := range c.Versions {
		if err := config.Validate(); err != nil {
			fault("Versions: %w", err)
		}
	}
	for _, config := range c.Effects {
		if err := config.Validate(); err != nil {
			fault("Effects: %w", err)
		}
	}
	if slices.Contains(c.Outboxes, nil) {
		fault("Outboxes: one of them is nil")
	}
	if c.BatchSize < 0 {
		fault("BatchSize is negative: %d", c.BatchSize)
	}
	for name, d := range map[string]time.Duration{"Pause": c.Pause, "Delay": c.Delay, "Interval": c.Interval} {
		if d < 0 {
			fault("%s is negative: %v", name, d)
		}
	}
	return errors.Join(faults...)
}

// sweepable is a table with what is old in it.
type sweepable struct {
	table string // quoted
	since string // an expression: the time from which the age counts; null: not to be swept
	age   time.Duration
}

// sweepables gives each table with an age once: two consumers often share theirs.
func (c SweeperConfig) sweepables() []sweepable {
	var tables []sweepable
	add := func(table, since string, age time.Duration) {
		s := sweepable{table, since, age}
		if age > 0 && !slices.Contains(tables, s) {
			tables = append(tables, s)
		}
	}
	for _, config := range c.Claims {
		add(config.QuotedTable(), "processed_at", c.ClaimsAge)
	}
	for _, config := range c.Versions {
		add(config.QuotedTable(), "updated_at", c.VersionsAge)
	}
	for _, config := range c.Effects {
		add(config.QuotedTable(), "case when state in ('done', 'failed') then updated_at end", c.EffectsAge)
	}
	if c.Outboxes == nil {
		add(outbox.Config{}.Table(), "sent_at", c.SentAge)
	}
	for _, publisher := range c.Outboxes {
		add(publisher.Table(), "sent_at", c.SentAge)
	}
	return tables
}
