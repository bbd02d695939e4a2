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

// Of several errors joined each has to be marked. Unknown is what is left.
func TestMarksInJoinedErrors(t *testing.T) {
	t.Parallel()
	timeout := errors.New("timeout")
	final, notDone := dedupe.Final(errors.New("declined")), dedupe.NotDone(errors.New("busy"))
	j := newJournal(t, dedupe.EffectsConfig{})
	for name, test := range map[string]struct {
		err   error
		state string
	}{
		"final wrapped":         {fmt.Errorf("order 5: %w", final), "failed"},
		"final alone":           {errors.Join(nil, final), "failed"},
		"two finals":            {errors.Join(final, fmt.Errorf("order 6: %w", final)), "failed"},
		"final and timeout":     {errors.Join(final, timeout), "unknown"},
		"timeout and final":     {errors.Join(timeout, final), "unknown"},
		"sentinel and final":    {fmt.Errorf("%w: %w", timeout, final), "unknown"},
		"final and not done":    {errors.Join(final, notDone), "unknown"},
		"final around a join":   {dedupe.Final(errors.Join(timeout, notDone)), "failed"},
		"not done wrapped":      {fmt.Errorf("order 5: %w", notDone), "free"},
		"two not done":          {errors.Join(notDone, errors.Join(notDone)), "free"},
		"timeout and not done":  {errors.Join(timeout, notDone), "unknown"},
		"not done, a timeout":   {dedupe.NotDone(errors.Join(timeout, final)), "free"},
		"not done around final": {dedupe.NotDone(fmt.Errorf("order 5: %w", final)), "free"},
		"final around not done": {dedupe.Final(fmt.Errorf("order 5: %w", notDone)), "failed"},
	} {
		_, err := dedupe.Do(t.Context(), j.Effects, name, nil, fail(test.err))
		require.Equal(t, test.err, err, name)
		require.Equal(t, test.state, j.state(name), name)
	}
}

// As a loop joins them, one by one.
func TestManyJoinedErrors(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	var all error
	for range 1000 {
		all = errors.Join(all, dedupe.NotDone(errors.New("busy")))
	}
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(all))
	require.Equal(t, all, err)
	require.Equal(t, "free", j.state("k"))
}

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// An error whose own methods panic is a panic of the call.
func TestErrorThatPanics(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	require.Panics(t, func() {
		var none *nilError
		_, _ = dedupe.Do(t.Context(), j.Effects, "k", nil, fail(none))
	})
	require.Equal(t, "unknown", j.state("k"))
}

func TestFinalWithoutText(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(dedupe.Final(errors.New(""))))
	require.EqualError(t, err, "")
	_, err = dedupe.Do(t.Context(), j.Effects, "k", nil, fail(dedupe.Final(errors.New(""))))
	require.EqualError(t, err, "")
}

// A repeat that did not get through says nothing about the first call.
func TestRepeatNotDoneAfterUnknown(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("timeout, after the charge")))
	require.Error(t, err)
	_, err = dedupe.Do(t.Context(), j.Effects, "k", nil, fail(dedupe.NotDone(errors.New("connection refused"))))
	require.Error(t, err)
	refuse := j.with(dedupe.EffectsConfig{OnUnknown: dedupe.Refuse})
	_, err = dedupe.Do(t.Context(), refuse.Effects, "k", nil, fail(errors.New("called")))
	require.ErrorIs(t, err, dedupe.ErrUnknown)
}

// Probe's error says NotDone, as that of an HTTP client shared with call does.
func TestProbeErrorNotDone(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{OnUnknown: dedupe.Probe, Probe: func(context.Context, string) (json.RawMessage, bool, error) {
		return nil, false, dedupe.NotDone(errors.New("connection refused"))
	}})
	j.abandon("k")
	_, err := dedupe.Do(t.Context(), j.Effects, "k", nil, fail(errors.New("called")))
	require.ErrorContains(t, err, "probe: connection refused")
	require.Equal(t, "unknown", j.state("k"))
}
