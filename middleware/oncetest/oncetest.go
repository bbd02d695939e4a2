package oncetest

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Prove is Config.Prove with the zero Config.
func Prove(t *testing.T, setup Setup, events []*message.Message) {
	t.Helper()
	Config{}.Prove(t, setup, events)
}

// Prove runs Replay, Concurrent and Crash as subtests, OutOfOrder where Config.Position is set, and Amnesia where
// Config.MustSurviveAmnesia is.
func (c Config) Prove(t *testing.T, setup Setup, events []*message.Message) {
	t.Helper()
	t.Run("Replay", func(t *testing.T) { c.Replay(t, setup, events) })
	t.Run("Concurrent", func(t *testing.T) { c.Concurrent(t, setup, events) })
	t.Run("Crash", func(t *testing.T) { c.Crash(t, setup, events) })
	if c.Position != nil {
		t.Run("OutOfOrder", func(t *testing.T) { c.OutOfOrder(t, setup, events) })
	}
	if c.MustSurviveAmnesia {
		t.Run("Amnesia", func(t *testing.T) { c.Amnesia(t, setup, events) })
	}
}
