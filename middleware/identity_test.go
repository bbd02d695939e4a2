package middleware_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
)

func TestBadIdentityBeginsNothing(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		for name, c := range map[string]struct {
			config once.Config
			msg    *message.Message
			want   error
		}{
			"no uuid":          {once.Config{}, newMessage(""), dedupe.ErrInvalidKey},
			"long uuid":        {once.Config{}, newMessage(strings.Repeat("x", 513)), dedupe.ErrInvalidKey},
			"NUL":              {once.Config{}, newMessage("a\x00b"), dedupe.ErrInvalidKey},
			"not UTF-8":        {once.Config{}, newMessage("a\xff"), dedupe.ErrInvalidKey},
			"no version":       {once.Config{Ordering: byMetadata}, newMessage("event"), ordering.ErrInvalidPosition},
			"bad version":      {once.Config{Ordering: byMetadata}, versioned("event", "card", "v7"), ordering.ErrInvalidPosition},
			"no entity":        {once.Config{Ordering: byMetadata}, versioned("event", "", "7"), ordering.ErrInvalidPosition},
			"own key function": {once.Config{Dedupe: dedupe.Config{Key: func(*message.Message) (string, error) { return "", nil }}}, newMessage("event"), dedupe.ErrInvalidKey},
		} {
			var seen recorder
			c.config.OnOutcome = seen.record
			h := w.consume(c.config, func(*message.Message) ([]*message.Message, error) {
				t.Error("the handler was called")
				return nil, nil
			})
			err := deliver(t, h, c.msg)
			require.ErrorIs(t, err, c.want, name)
			require.True(t, once.IsPermanent(err), name)
			require.True(t, once.ShouldPoison(err), name)
			require.Zero(t, seen.outcomes[0].Attempts, name)
			require.Equal(t, once.Failed, seen.outcomes[0].Kind, name)
		}
		w.requireNothing()
	})
}

// A key function made from nonsense fails on every message, and empties no topic into the poison queue.
func TestBrokenKeyFunctionPoisonsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	for _, config := range []once.Config{
		{Dedupe: dedupe.Config{Key: dedupe.JSONField("data..id")}},
		{Ordering: ordering.Config{Position: ordering.JSONFields("", "version")}},
	} {
		err := deliver(t, w.consume(config, apply), newMessage("event"))
		require.Error(t, err)
		require.True(t, once.IsPermanent(err))
		require.False(t, once.ShouldPoison(err))
	}
	w.requireNothing()
}

// An event id that the database's encoding has no letters for fails at the claim, each time: that is for the poison queue.
func TestUntranslatableEventID(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "sql-pq")
	_, err := w.pool.Exec(t.Context(), `create database latin1_of_this_test template template0 encoding 'LATIN1' lc_collate 'C' lc_ctype 'C'`)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := w.pool.Exec(context.WithoutCancel(t.Context()), `drop database latin1_of_this_test with (force)`)
		require.NoError(t, err)
	})
	u, err := url.Parse(w.url)
	require.NoError(t, err)
	u.Path = "/latin1_of_this_test"
	w.db = w.open(u.String())
	require.NoError(t, once.InitializeSchema(t.Context(), w.db))
	err = deliver(t, w.consume(once.Config{}, apply), newMessage("日本"))
	require.Error(t, err)
	require.True(t, once.IsPermanent(err))
	require.True(t, once.ShouldPoison(err))
}

// The key is found once, before the handler, which may change the message.
func TestHandlerMayChangeTheMessage(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		calls := 0
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			calls++
			msg.UUID, msg.Payload = "another", nil
			if _, err := apply(msg); err != nil || calls > 1 {
				return nil, err
			}
			return nil, exec(msg.Context(), `do $$ begin raise exception 'conflict' using errcode = '40001'; end $$`)
		})
		require.NoError(t, deliver(t, h, newMessage("event")))
		require.Equal(t, 2, calls)
		require.Equal(t, 1, w.count(`select count(*) from watermill_processed_events where event_id = 'event'`))
		require.Equal(t, 1, w.count(`select count(*) from effects where event_id = 'event'`))
	})
}

func TestClaimsDisabled(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		h := w.consume(once.Config{Dedupe: dedupe.Config{Disabled: true}}, func(msg *message.Message) ([]*message.Message, error) {
			_, ok := once.IdempotencyKey(msg.Context(), "charge")
			require.Equal(t, msg.UUID != "", ok)
			return apply(msg)
		})
		for _, id := range []string{"event", "event", ""} {
			require.NoError(t, deliver(t, h, newMessage(id)))
		}
		require.Equal(t, 3, w.effects())
		require.Zero(t, w.claims())
		require.ErrorIs(t, deliver(t, h, newMessage("a\x00b")), dedupe.ErrInvalidKey)

		guarded := w.consume(once.Config{Dedupe: dedupe.Config{Disabled: true}, Ordering: byMetadata}, apply)
		for range 2 {
			require.NoError(t, deliver(t, guarded, versioned("", "card", "1")))
		}
		require.Equal(t, 4, w.effects())
	})
}
