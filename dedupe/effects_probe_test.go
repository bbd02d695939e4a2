package dedupe_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
)

func notFound(context.Context, string) (json.RawMessage, bool, error) { return nil, false, nil }

func TestProbe(t *testing.T) {
	t.Parallel()
	away := errors.New("provider is away")
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
				if test.fault != nil {
					require.ErrorIs(t, err, test.fault)
				}
				require.Equal(t, test.want == "new", calls == 1)
				require.Equal(t, test.state, j.state("k"))

				asked = nil
				_, _ = dedupe.Do(t.Context(), j.Effects, "k", nil, charge(&calls, "new"))
				require.Equal(t, test.state == "unknown", len(asked) == 1, "asked again where it is still unknown")
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
