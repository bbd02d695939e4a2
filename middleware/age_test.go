package middleware_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
)

// dated is a message of a time, at version 1 of an entity of its own.
func dated(uuid string, at time.Time) *message.Message {
	msg := versioned(uuid, "entity of "+uuid, "1")
	msg.Payload = fmt.Appendf(nil, `{"created_at":%q,"created":%d}`, at.UTC().Format(time.RFC3339Nano), at.Unix())
	return msg
}

func TestMaxAge(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		var seen recorder
		config := once.Config{MaxAge: time.Hour, Time: once.JSONTime("created_at"), Ordering: byMetadata, OnOutcome: seen.record}
		h := w.consume(config, apply)
		unlimited := w.consume(once.Config{Ordering: byMetadata}, apply)
		deliverOf := func(age time.Duration, uuid string) error {
			return deliver(t, h, dated(uuid, time.Now().Add(-age)))
		}

		err := deliverOf(61*time.Minute, "old")
		require.ErrorIs(t, err, once.ErrTooOld)
		require.ErrorContains(t, err, `"old"`)
		require.True(t, once.IsPermanent(err))
		require.True(t, once.ShouldPoison(err))
		require.Equal(t, once.Failed, seen.outcomes[0].Kind)
		w.requireNothing()
		w.idle()

		require.NoError(t, deliverOf(59*time.Minute, "young"))
		require.NoError(t, deliverOf(-time.Hour, "of the future"))
		require.Equal(t, 2, w.effects())

		// An old one that is known is what it is known to be.
		old := dated("known", time.Now().Add(-time.Hour*24))
		require.NoError(t, deliver(t, unlimited, old))
		require.NoError(t, deliver(t, h, old))
		require.Equal(t, once.Duplicate, seen.outcomes[len(seen.outcomes)-1].Kind)
		_, err = w.pool.Exec(t.Context(), `delete from watermill_processed_events where event_id = 'known'`)
		require.NoError(t, err)
		require.NoError(t, deliver(t, h, old))
		require.Equal(t, once.Stale, seen.outcomes[len(seen.outcomes)-1].Kind)
		require.Equal(t, 3, w.effects())
	})
}

// Without claims, the versions may be what is swept.
func TestMaxAgeWithoutClaims(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		h := w.consume(once.Config{MaxAge: time.Hour, Time: once.JSONUnixTime("created", time.Second), Dedupe: dedupe.Config{Disabled: true}}, apply)
		require.ErrorIs(t, deliver(t, h, dated("old", time.Now().Add(-2*time.Hour))), once.ErrTooOld)
		w.requireNothing()
		require.NoError(t, deliver(t, h, dated("young", time.Now())))
		require.Equal(t, 1, w.effects())
	})
}

// The clock that dates the claims decides, whatever the time is here.
func TestMaxAgeIsOfTheDatabasesClock(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		w.setClock("3 hours")
		w.db = w.open(w.url)
		h := w.consume(once.Config{MaxAge: time.Hour, Time: once.JSONTime("created_at")}, apply)
		require.ErrorIs(t, deliver(t, h, dated("now", time.Now())), once.ErrTooOld)
		require.NoError(t, deliver(t, h, dated("then", time.Now().Add(3*time.Hour-59*time.Minute))))
		require.ErrorIs(t, deliver(t, h, dated("before", time.Now().Add(3*time.Hour-61*time.Minute))), once.ErrTooOld)
	})
}

// setClock puts the clock of the database's new sessions off.
func (w *world) setClock(ahead string) {
	w.t.Helper()
	_, err := w.pool.Exec(w.t.Context(), `
		create schema clock;
		create function clock.now() returns timestamptz stable language sql as $$ select pg_catalog.now() + interval '`+ahead+`' $$;
		do $$ begin execute format('alter database %I set search_path to clock, pg_catalog, public', current_database()); end $$`)
	require.NoError(w.t, err)
}

// The age's end is exact: a message is refused from the microsecond on at which it is older.
func TestMaxAgeToTheMicrosecond(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	_, err := w.pool.Exec(t.Context(), `
		create schema clock;
		create function clock.now() returns timestamptz stable language sql as $$ select '2026-01-02 03:04:05.000006Z'::timestamptz $$;
		do $$ begin execute format('alter database %I set search_path to clock, pg_catalog, public', current_database()); end $$`)
	require.NoError(t, err)
	w.db = w.open(w.url)
	h := w.consume(once.Config{MaxAge: time.Second, Time: once.JSONTime("created_at")}, apply)
	edge := time.Date(2026, 1, 2, 3, 4, 4, 6000, time.UTC)
	require.NoError(t, deliver(t, h, dated("just", edge)))
	require.ErrorIs(t, deliver(t, h, dated("no more", edge.Add(-time.Microsecond))), once.ErrTooOld)
}

func TestTimesOfMessages(t *testing.T) {
	t.Parallel()
	want := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	payload := func(text string) *message.Message { return message.NewMessage("event", []byte(text)) }
	metadata := func(key, value string) *message.Message {
		msg := payload("no JSON")
		msg.Metadata.Set(key, value)
		return msg
	}
	unix := once.JSONUnixTime("data.created", time.Second)
	for name, c := range map[string]struct {
		find func(*message.Message) (time.Time, error)
		msg  *message.Message
	}{
		"field":         {once.JSONTime("at"), payload(`{"at":"2026-01-02T03:04:05Z"}`)},
		"deeper, zone":  {once.JSONTime("data.at"), payload(`{"data":{"at":"2026-01-02T05:04:05+02:00"}}`)},
		"seconds":       {unix, payload(`{"data":{"created":1767323045}}`)},
		"digits":        {unix, payload(`{"data":{"created":"1767323045"}}`)},
		"milliseconds":  {once.JSONUnixTime("at", time.Millisecond), payload(`{"at":1767323045000}`)},
		"ce, Kafka":     {once.CloudEventTime, metadata("ce_time", "2026-01-02T03:04:05Z")},
		"ce, HTTP":      {once.CloudEventTime, metadata("Ce-Time", "2026-01-02T03:04:05Z")},
		"ce, NATS":      {once.CloudEventTime, metadata("ce-time", "2026-01-02T03:04:05Z")},
		"ce, AMQP":      {once.CloudEventTime, metadata("cloudEvents:time", "2026-01-02T03:04:05Z")},
		"ce, AMQP, _":   {once.CloudEventTime, metadata("cloudEvents_time", "2026-01-02T03:04:05Z")},
		"ce structured": {once.CloudEventTime, payload(`{"specversion":"1.0","time":"2026-01-02T03:04:05Z"}`)},
	} {
		got, err := c.find(c.msg)
		require.NoError(t, err, name)
		require.True(t, got.Equal(want), "%s: %v", name, got)
	}
}

func TestBadTimeBeginsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	payload := func(text string) *message.Message { return message.NewMessage("event", []byte(text)) }
	at := func(at time.Time, err error) func(*message.Message) (time.Time, error) {
		return func(*message.Message) (time.Time, error) { return at, err }
	}
	failed := errors.New("failed")
	seconds, hours := once.JSONUnixTime("at", time.Second), once.JSONUnixTime("at", time.Hour)
	for name, c := range map[string]struct {
		find func(*message.Message) (time.Time, error)
		msg  *message.Message
	}{
		"missing":           {once.JSONTime("at"), payload(`{}`)},
		"malformed":         {once.JSONTime("at"), payload(`{"at":"yesterday"}`)},
		"a number":          {once.JSONTime("at"), payload(`{"at":1767323045}`)},
		"no JSON":           {once.JSONTime("at"), payload(`secret`)},
		"missing number":    {seconds, payload(`{}`)},
		"a fraction":        {seconds, payload(`{"at":1.5}`)},
		"a text":            {seconds, payload(`{"at":"secret"}`)},
		"out of range":      {seconds, payload(`{"at":9223372036854775807}`)},
		"out of range, neg": {seconds, payload(`{"at":-9223372036854775808}`)},
		"hours beyond":      {hours, payload(`{"at":9223372036854775807}`)},
		"millis beyond":     {once.JSONUnixTime("at", time.Millisecond), payload(`{"at":9223372036854775807}`)},
		"no CloudEvent":     {once.CloudEventTime, payload(`{"time":"2026-01-02T03:04:05Z"}`)},
		"no time in it":     {once.CloudEventTime, payload(`{"specversion":"1.0"}`)},
		"ce, malformed":     {once.CloudEventTime, payload(`{"specversion":"1.0","time":"secret"}`)},
		"zero":              {at(time.Time{}, nil), payload(`{}`)},
		"own error":         {at(time.Now(), failed), payload(`{}`)},
	} {
		var seen recorder
		h := w.consume(once.Config{MaxAge: time.Hour, Time: c.find, OnOutcome: seen.record}, apply)
		err := deliver(t, h, c.msg)
		require.ErrorIs(t, err, once.ErrInvalidTime, name)
		require.Equal(t, name == "own error", errors.Is(err, failed))
		require.ErrorContains(t, err, `"event"`, name)
		require.NotContains(t, err.Error(), "secret", name)
		require.True(t, once.IsPermanent(err), name)
		require.True(t, once.ShouldPoison(err), name)
		require.Zero(t, seen.outcomes[0].Attempts, name)
	}
	for _, find := range []func(*message.Message) (time.Time, error){
		once.JSONTime("a..b"), once.JSONUnixTime("", time.Second), once.JSONUnixTime("at", 0),
	} { // made from nonsense: no message's fault
		err := deliver(t, w.consume(once.Config{MaxAge: time.Hour, Time: find}, apply), payload(`{}`))
		require.Error(t, err)
		require.True(t, once.IsPermanent(err))
		require.False(t, once.ShouldPoison(err))
	}
	w.requireNothing()
}

func TestMaxAgeFaults(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, once.Config{MaxAge: time.Hour}.Validate(), "MaxAge needs Time")
	require.ErrorContains(t, once.Config{MaxAge: -1, Time: once.CloudEventTime}.Validate(), "MaxAge is negative")
	require.NoError(t, once.Config{Time: once.CloudEventTime}.Validate(), "as where the age comes from a setting, and is 0")
}

// A copy that comes while the first one is being handled is a duplicate, however old it is.
func TestMaxAgeAndACopyAtTheSameTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	entered, goOn := make(chan struct{}), make(chan struct{})
	first := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
		close(entered)
		<-goOn
		return apply(msg)
	})
	second := w.consume(once.Config{MaxAge: time.Hour, Time: once.JSONTime("created_at")}, apply)
	results := make(chan error, 2)
	old := time.Now().Add(-2 * time.Hour)
	go func() { _, err := first(dated("event", old)); results <- err }()
	<-entered
	go func() { _, err := second(dated("event", old)); results <- err }()
	require.Eventually(t, func() bool {
		return w.count(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) == 1
	}, 20*time.Second, 5*time.Millisecond)
	close(goOn)
	require.NoError(t, <-results)
	require.NoError(t, <-results)
	require.Equal(t, 1, w.effects())
}
