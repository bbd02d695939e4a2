package dedupe_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
)

func notFound(context.Context, string) (json.RawMessage, bool, error) { return nil, false, nil }

func TestProbe(t *testing.T) {
	t.Parallel()
	away, declined := errors.New("provider is away"), errors.New("the card was declined")
	for name, test := range map[string]struct {
		outcome json.RawMessage
		found   bool
		fault   error
		want    string // "": an error
		state   string
	}{
		"found":     {json.RawMessage(`{"ID":"old","Amount":3}`), true, nil, "old", "done"},
		"not found": {nil, false, nil, "new", "done"},
		"error":     {nil, false, away, "", "unknown"},
		"not asked": {nil, false, dedupe.NotDone(away), "", "unknown"}, // which does not say that the call was not made
		"refused":   {nil, false, fmt.Errorf("look up: %w", dedupe.Final(declined)), "", "failed"},
		"no JSON":   {json.RawMessage(`{`), true, nil, "", "unknown"},
		"nothing":   {nil, true, nil, "", "unknown"},
	} {
		for _, why := range []string{"error", "crash"} {
			t.Run(name+" after "+why, func(t *testing.T) {
				t.Parallel()
				var asked []string
				j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Probe, Probe: func(ctx context.Context, key string) (json.RawMessage, bool, error) {
					asked = append(asked, key)
					return test.outcome, test.found, test.fault
				}})
				if why == "crash" {
					j.abandon("k")
				} else {
					_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("timeout")))
					require.Error(t, err)
				}
				require.Empty(t, asked)
				calls := 0
				got, err := dedupe.Do(t.Context(), j.Effects, "k", nil, charge(&calls, "new"))
				require.Equal(t, []string{"k"}, asked)
				require.Equal(t, test.want, got.ID)
				require.Equal(t, test.want == "", err != nil)
				require.Equal(t, test.want == "new", calls == 1)
				require.Equal(t, test.state, j.state("k"))
				if errors.Is(test.fault, away) {
					require.ErrorIs(t, err, away)
				}

				asked = nil
				_, again := dedupe.Do(t.Context(), j.Effects, "k", nil, charge(&calls, "new"))
				require.Equal(t, test.state == "unknown", len(asked) == 1, "asked again where it is still unknown")
				if test.state == "failed" {
					for _, err := range []error{err, again} {
						var final *dedupe.FinalError
						require.ErrorAs(t, err, &final)
						require.Equal(t, "the card was declined", final.Text)
					}
				}
			})
		}
	}
}

// What is free or fresh needs no question.
func TestProbeIsNotAskedWithoutNeed(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Probe, Probe: func(context.Context, string) (json.RawMessage, bool, error) {
		panic("asked")
	}})
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(dedupe.NotDone(errors.New("busy"))))
	require.Error(t, err)
	calls := 0
	_, err = dedupe.Do(t.Context(), j.Effects, "k", nil, charge(&calls, "r"))
	require.NoError(t, err)
	require.Equal(t, 1, calls)
}

// The key may be a hash: what it stands for comes on the context.
func TestProbeHasTheCallersContext(t *testing.T) {
	t.Parallel()
	type orderKey struct{}
	var order any
	j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Probe, Probe: func(ctx context.Context, _ string) (json.RawMessage, bool, error) {
		order = ctx.Value(orderKey{})
		return json.RawMessage(`{}`), true, nil
	}})
	j.abandon("k")
	_, err := dedupe.Do(context.WithValue(t.Context(), orderKey{}, "order-1"), j.Effects, "k", nil, fail(errors.New("called")))
	require.NoError(t, err)
	require.Equal(t, "order-1", order)
}
