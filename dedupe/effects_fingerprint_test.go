package dedupe_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
)

// In each state, the same key with another request is refused and changes nothing.
func TestFingerprintInEveryState(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{Wait: -1})
	states := map[string]func(key string, request any){
		"started": func(key string, request any) {
			j.abandon(key)
			j.exec(`update watermill_effects set lease_until = clock_timestamp() + interval '1 h' where key = $1`, key)
		},
		"over": func(key string, request any) { j.abandon(key) },
		"unknown": func(key string, request any) {
			_, _ = dedupe.Do(t.Context(), j.Effects, key, request, fail(errors.New("x")))
		},
		"free": func(key string, request any) {
			_, _ = dedupe.Do(t.Context(), j.Effects, key, request, fail(dedupe.NotDone(errors.New("x"))))
		},
		"failed": func(key string, request any) {
			_, _ = dedupe.Do(t.Context(), j.Effects, key, request, fail(dedupe.Final(errors.New("x"))))
		},
		"done": func(key string, request any) {
			_, _ = dedupe.Do(t.Context(), j.Effects, key, request, charge(new(int), "first"))
		},
	}
	dump := func(key string) (row string) {
		require.NoError(t, j.pool.QueryRow(t.Context(), `select e::text from watermill_effects e where key = $1`, key).Scan(&row))
		return row
	}
	for state, bring := range states {
		for _, first := range []any{nil, 100} {
			for _, second := range []any{nil, 100, 200} {
				key := fmt.Sprint(state, first, second)
				bring(key, first)
				if first == nil {
					j.exec(`update watermill_effects set fingerprint = null where key = $1`, key)
				} else if state == "started" || state == "over" { // as Do with 100 leaves it
					other := "other" + key
					_, err := dedupe.Do(t.Context(), j.Effects, other, first, charge(new(int), ""))
					require.NoError(t, err)
					j.exec(`update watermill_effects set fingerprint = (select fingerprint from watermill_effects where key = $2) where key = $1`, key, other)
				}
				before, calls := dump(key), 0
				_, err := dedupe.Do(t.Context(), j.Effects, key, second, charge(&calls, "second"))
				if first == 100 && second == 200 {
					require.ErrorIs(t, err, dedupe.ErrFingerprintMismatch, key)
					require.Equal(t, before, dump(key), key)
					require.Zero(t, calls, key)
					continue
				}
				require.NotErrorIs(t, err, dedupe.ErrFingerprintMismatch, key)
				require.Equal(t, state == "over" || state == "unknown" || state == "free", calls == 1, key)
				if calls == 1 && first == nil && second == 100 {
					_, err := dedupe.Do(t.Context(), j.Effects, key, 200, charge(&calls, "third"))
					require.ErrorIs(t, err, dedupe.ErrFingerprintMismatch, "the second call's fingerprint is kept")
				}
			}
		}
	}
}

func TestFingerprintIsOfTheJSON(t *testing.T) {
	t.Parallel()
	j := newJournal(t, dedupe.EffectsConfig{})
	type charge1 struct {
		Card   string
		Amount int
	}
	type charge2 struct {
		Amount int
		Card   string
	}
	same := []any{
		charge1{"c", 1}, charge2{1, "c"}, &charge1{"c", 1}, map[string]any{"Card": "c", "Amount": 1},
		json.RawMessage(` {"Card":"c", "Amount":1 }`), json.RawMessage(`{"Amount":1,"Card":"c"}`),
		nil, (*charge1)(nil), json.RawMessage(`null`),
	}
	for _, request := range same {
		_, err := dedupe.Do(t.Context(), j.Effects, "k", request, charge(new(int), "r"))
		require.NoError(t, err, "%#v", request)
	}
	for _, request := range []any{
		charge1{"c", 2}, charge1{"d", 1}, json.RawMessage(`{"Amount":1.0,"Card":"c"}`), "", 0, []int{}, struct{}{},
	} {
		_, err := dedupe.Do(t.Context(), j.Effects, "k", request, charge(new(int), "r"))
		require.ErrorIs(t, err, dedupe.ErrFingerprintMismatch, "%#v", request)
	}
	var large any = json.RawMessage(`{"id":12345678901234567890}`)
	_, err := dedupe.Do(t.Context(), j.Effects, "large", large, charge(new(int), "r"))
	require.NoError(t, err)
	_, err = dedupe.Do(t.Context(), j.Effects, "large", json.RawMessage(`{"id":12345678901234567891}`), charge(new(int), "r"))
	require.ErrorIs(t, err, dedupe.ErrFingerprintMismatch, "numbers are not rounded")
	_, err = dedupe.Do(t.Context(), j.Effects, "chan", make(chan int), charge(new(int), "r"))
	require.ErrorContains(t, err, "fingerprint")
}
