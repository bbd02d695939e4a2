package middleware_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
)

func TestAnIDWithOtherContentIsRefused(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, w *world) {
		for name, cache := range map[string]int{"uncached": 0, "cached": 10} {
			var seen recorder
			consumer := once.Config{
				Consumer: name, Dedupe: dedupe.Config{Fingerprint: true, Cache: cache}, Ordering: byMetadata, OnOutcome: seen.record,
			}
			h := w.consume(consumer, apply)
			event := func(payload string) *message.Message {
				msg := versioned("e1", "card", "1")
				msg.Payload = []byte(payload)
				return msg
			}
			before := w.effects()
			require.NoError(t, deliver(t, h, event(`{"amount":1}`)))
			require.NoError(t, deliver(t, h, event(`{"amount":1}`)))

			err := deliver(t, h, event(`{"amount":2}`))
			require.ErrorIs(t, err, dedupe.ErrFingerprintMismatch)
			require.True(t, once.IsPermanent(err))
			require.True(t, once.ShouldPoison(err))
			require.Contains(t, err.Error(), `"e1"`)
			require.NotContains(t, err.Error(), "amount")
			require.Equal(t, before+1, w.effects())

			require.NoError(t, deliver(t, h, event(`{"amount":1}`)), "the claim is as it was")
			require.NoError(t, deliver(t, w.consume(once.Config{Consumer: name}, apply), event(`{"amount":2}`)), "off: a duplicate is a duplicate")
			require.Equal(t, before+1, w.effects())

			require.Len(t, seen.outcomes, 4)
			for i, kind := range []once.Kind{once.Fresh, once.Duplicate, once.Failed, once.Duplicate} {
				require.Equal(t, kind, seen.outcomes[i].Kind)
			}
			w.idle()
		}
	})
}

// A claim from before Fingerprint was switched on, or from a user's own table, has no digest.
func TestAClaimWithoutFingerprintMatchesAnyContent(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, w *world) {
		require.NoError(t, deliver(t, w.consume(once.Config{}, apply), newMessage("e1")))
		h := w.consume(once.Config{Dedupe: dedupe.Config{Fingerprint: true}}, apply)
		other := newMessage("e1")
		other.Payload = []byte(`{"other":true}`)
		require.NoError(t, deliver(t, h, other))
		require.Equal(t, 1, w.effects())
	})
}

// The handler's own null is its message's fault, and no mismatch.
func TestAHandlersNullIsNoMismatch(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, w *world) {
		h := w.consume(once.Config{Dedupe: dedupe.Config{Fingerprint: true}}, func(msg *message.Message) ([]*message.Message, error) {
			return nil, exec(msg.Context(), `insert into effects (event_id) values (null)`)
		})
		err := deliver(t, h, newMessage("e1"))
		require.Error(t, err)
		require.NotErrorIs(t, err, dedupe.ErrFingerprintMismatch)
		w.requireNothing()
	})
}

// The digest of a rival that has not committed yet is compared once it has.
func TestTwoContentsOfOneIDAtOnce(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, w *world) {
		entered, leave := make(chan struct{}), make(chan struct{})
		config := once.Config{Dedupe: dedupe.Config{Fingerprint: true}}
		slow := w.consume(config, func(msg *message.Message) ([]*message.Message, error) {
			close(entered)
			<-leave
			return apply(msg)
		})
		first := make(chan error, 1)
		go func() { first <- deliver(t, slow, newMessage("e1")) }()
		<-entered

		second := make(chan error, 1)
		other := newMessage("e1")
		other.Payload = []byte(`{"other":true}`)
		go func() { second <- deliver(t, w.consume(config, apply), other) }()
		require.Eventually(t, func() bool {
			return w.count(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) == 1
		}, 10*time.Second, time.Millisecond)
		close(leave)
		require.NoError(t, <-first)
		require.ErrorIs(t, <-second, dedupe.ErrFingerprintMismatch)
		require.Equal(t, 1, w.effects())
	})
}

// A trigger of the user's that fails on a null of its own is no mismatch.
func TestTriggerOnClaims(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, w *world) {
		_, err := w.pool.Exec(t.Context(), `
			create table audit (who text not null);
			create function note() returns trigger language plpgsql as $$ begin insert into audit values (nullif(current_setting('app.user', true), '')); return new; end $$;
			create trigger note before insert on watermill_processed_events for each row execute function note()`)
		require.NoError(t, err)
		h := w.consume(once.Config{Dedupe: dedupe.Config{Fingerprint: true}}, apply)
		err = deliver(t, h, newMessage("event"))
		require.ErrorContains(t, err, "who")
		require.NotErrorIs(t, err, dedupe.ErrFingerprintMismatch)
	})
}
