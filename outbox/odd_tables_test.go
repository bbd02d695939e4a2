package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

// The full table is renamed, to be kept, and a new one is made under its name, whose offsets begin anew.
func TestATableThatIsReplaced(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]string{
		"by a new one": `alter table watermill_outbox rename to watermill_outbox_2026;` + outbox.Config{}.Schema(),
		"by a copy": `create table copy (like watermill_outbox including all);
			alter table watermill_outbox rename to watermill_outbox_2026; alter table copy rename to watermill_outbox`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			b := newBroker()
			startRelay(t, pool, b, outbox.RelayConfig{})
			publish(t, pool, numbered(50, 5)...)
			b.wait(t, 50)
			drained(t, pool)
			_, err := pool.Exec(t.Context(), replace)
			require.NoError(t, err)
			for i := range 60 {
				publish(t, pool, newMessage("key", fmt.Sprint(i)))
			}
			// Another one has the same locks.
			startRelay(t, pool, b, outbox.RelayConfig{})
			for i := range 60 {
				publish(t, pool, newMessage("key", fmt.Sprint(60+i)))
			}
			for i, s := range b.wait(t, 170)[50:] {
				require.Equal(t, fmt.Sprint(i), s.Payload)
			}
			drained(t, pool)
		})
	}
}

// What a relay may not write down, it would send again and again.
func TestARelayWithoutRightsSendsNothing(t *testing.T) {
	t.Parallel()
	const columns = "attempts, last_error, next_attempt_at"
	for name, test := range map[string]struct {
		config   outbox.RelayConfig
		has, and string
	}{
		"no update":             {outbox.RelayConfig{}, "select, delete", "update"},
		"no delete":             {outbox.RelayConfig{}, "select, update", "delete"},
		"one column":            {outbox.RelayConfig{}, "select, delete, update (" + columns + ")", "update (parked_at)"},
		"one column, KeepSent":  {outbox.RelayConfig{KeepSent: true}, "select, update (" + columns + ", parked_at)", "update (sent_at)"},
		"one column to read":    {outbox.RelayConfig{}, "delete, update, select (\"offset\", uuid, topic, key, payload, " + columns + ", parked_at, sent_at)", "select (metadata)"},
		"all":                   {outbox.RelayConfig{}, "select, update, delete", ""},
		"all columns, KeepSent": {outbox.RelayConfig{KeepSent: true}, "select, update (" + columns + ", parked_at, sent_at)", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			theirs, exec := clerk(t, pool)
			exec(`grant ` + test.has + ` on watermill_outbox to clerk`)
			b, log := newBroker(), watermill.NewCaptureLogger()
			publish(t, pool, numbered(20, 4)...)
			stop := startRelayThatLogs(t, theirs, b, test.config, log)
			if test.and != "" {
				eventually(t, "the log says why", func() bool { return logged(log, "nothing is sent: grant") })
				require.Empty(t, b.all())
				exec(`grant ` + test.and + ` on watermill_outbox to clerk`)
			}
			b.wait(t, 20)
			eventually(t, "all is noted", func() bool { return unsent(t, pool) == 0 })
			stop()
			require.Len(t, b.all(), 20)
		})
	}
}

// A hoster makes a database read-only whose disk is nearly full.
func TestNothingIsSentFromADatabaseThatIsReadOnly(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	publish(t, pool, numbered(20, 4)...)
	config := pool.Config()
	config.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	theirs, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(theirs.Close)
	b, log := newBroker(), watermill.NewCaptureLogger()
	stop := startRelayThatLogs(t, theirs, b, outbox.RelayConfig{}, log)
	eventually(t, "the log says why", func() bool { return logged(log, "read-only") })
	stop()
	require.Empty(t, b.all())
}

// Row security fails no statement: it hides rows. The relay works with what it sees, and says so.
func TestRowSecurityIsLogged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		security string
		sent     int
		says     bool
	}{
		"no policy":         {`alter table watermill_outbox enable row level security`, 0, true},
		"all rows":          {`alter table watermill_outbox enable row level security; create policy p on watermill_outbox using (true)`, 20, true},
		"a role above that": {`alter table watermill_outbox enable row level security; alter role clerk bypassrls`, 20, false},
		"none":              {``, 20, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			theirs, exec := clerk(t, pool)
			exec(`grant select, update, delete on watermill_outbox to clerk; ` + test.security)
			b, log := newBroker(), watermill.NewCaptureLogger()
			publish(t, pool, numbered(20, 4)...)
			stop := startRelayThatLogs(t, theirs, b, outbox.RelayConfig{}, log)
			if test.sent > 0 {
				b.wait(t, test.sent)
				eventually(t, "all is noted", func() bool { return unsent(t, pool) == 0 })
			} else {
				eventually(t, "the log says why", func() bool { return logged(log, "Row security") })
				require.Equal(t, 20, unsent(t, pool))
			}
			stop()
			require.Len(t, b.all(), test.sent)
			require.Equal(t, test.says, logged(log, "Row security"))
		})
	}
}

// clerk gives a pool of a role of its own, and how to run statements about it as the owner.
func clerk(t *testing.T, pool *pgxpool.Pool) (theirs *pgxpool.Pool, exec func(string)) {
	t.Helper()
	role := "clerk_" + strings.ReplaceAll(watermill.NewUUID(), "-", "")
	exec = func(query string) {
		t.Helper()
		_, err := pool.Exec(context.Background(), strings.ReplaceAll(query, "clerk", role))
		require.NoError(t, err)
	}
	exec(`create role clerk; grant select on watermill_outbox_offset_seq to clerk`)
	t.Cleanup(func() { exec(`drop owned by clerk; drop role clerk`) })
	config, err := pgxpool.ParseConfig(pool.Config().ConnString())
	require.NoError(t, err)
	config.ConnConfig.RuntimeParams["role"] = role
	theirs, err = pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(theirs.Close)
	return theirs, exec
}

// logged tells whether an error was logged whose words or fields hold a text.
func logged(log *watermill.CaptureLoggerAdapter, text string) bool {
	for _, entry := range log.Captured()[watermill.ErrorLogLevel] {
		if strings.Contains(fmt.Sprint(entry.Msg, entry.Err, entry.Fields), text) {
			return true
		}
	}
	return false
}

func unsent(t testing.TB, pool *pgxpool.Pool) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), `select count(*) from watermill_outbox where sent_at is null`).Scan(&n))
	return n
}

// A trigger refuses what the relay has to say of a message: the relay does not rush, and goes on when it may. After that a single error
// costs it no long wait.
func TestARelayBacksOffWhereItMayNotWrite(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	_, err := pool.Exec(t.Context(), `create function deny() returns trigger language plpgsql as $$ begin raise 'no'; end $$;
		create trigger deny before delete on watermill_outbox for each row execute function deny()`)
	require.NoError(t, err)
	b, log := newBroker(), watermill.NewCaptureLogger()
	publish(t, pool, newMessage("key", "0"))
	stop := startRelayThatLogs(t, pool, b, outbox.RelayConfig{}, log)
	eventually(t, "the waits grow", func() bool {
		waits := loggedWaits(log)
		return len(waits) > 0 && slices.Max(waits) > time.Second
	})
	_, err = pool.Exec(t.Context(), `alter table watermill_outbox disable trigger deny`)
	require.NoError(t, err)
	drained(t, pool)
	for range 3 {
		before := len(loggedWaits(log))
		_, err = pool.Exec(t.Context(), `alter table watermill_outbox enable trigger deny`)
		require.NoError(t, err)
		publish(t, pool, newMessage("key", "again"))
		eventually(t, "it is refused", func() bool { return len(loggedWaits(log)) > before })
		_, err = pool.Exec(t.Context(), `alter table watermill_outbox disable trigger deny`)
		require.NoError(t, err)
		drained(t, pool)
		require.LessOrEqual(t, loggedWaits(log)[before], 100*time.Millisecond)
		publish(t, pool, newMessage("key", "good"))
		drained(t, pool)
	}
	stop()
}

// PostgreSQL refuses to have one row changed: that holds up no other, ends no session, and what the broker took is not sent again.
func TestARowThatPostgreSQLRefusesToChange(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config        outbox.RelayConfig
		forbid, allow string
		fails         bool
	}{
		"another table refers to it": {outbox.RelayConfig{},
			`create table audit (o bigint references watermill_outbox ("offset")); insert into audit select "offset" from watermill_outbox`,
			`drop table audit`, false},
		"a trigger on delete": {outbox.RelayConfig{},
			`create trigger deny before delete on watermill_outbox for each row when (old.key = 'bad') execute function deny()`,
			`drop trigger deny on watermill_outbox`, false},
		"a trigger, KeepSent": {outbox.RelayConfig{KeepSent: true},
			`create trigger deny before update on watermill_outbox for each row when (old.key = 'bad') execute function deny()`,
			`drop trigger deny on watermill_outbox`, false},
		"a trigger on what has failed": {outbox.RelayConfig{},
			`create trigger deny before update on watermill_outbox for each row when (old.key = 'bad') execute function deny()`,
			`drop trigger deny on watermill_outbox`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			exec := func(query string) {
				_, err := pool.Exec(t.Context(), query)
				require.NoError(t, err)
			}
			exec(`create function deny() returns trigger language plpgsql as $$ begin raise 'not that one'; end $$`)
			b, log := newBroker(), watermill.NewCaptureLogger()
			var well atomic.Bool
			b.refuse = func(_ string, msg *message.Message) error {
				if test.fails && string(msg.Payload) == "bad" && !well.Load() {
					return errors.New("refused")
				}
				return nil
			}
			publish(t, pool, newMessage("bad", "bad"))
			exec(test.forbid)
			stop := startRelayThatLogs(t, pool, b, test.config, log)
			for range 20 {
				publish(t, pool, numbered(50, 10)...)
				eventually(t, "the others are sent and noted", func() bool { return unsent(t, pool) == 1 })
			}
			eventually(t, "it is logged", func() bool { return logged(log, "not that one") || logged(log, "audit") })
			well.Store(true)
			if test.fails { // and then the message behind it
				publish(t, pool, newMessage("bad", "next"))
				eventually(t, "it is sent", func() bool { return len(b.all()) == 1002 })
			}
			exec(test.allow)
			eventually(t, "all is noted", func() bool { return unsent(t, pool) == 0 })
			stop()
			require.False(t, logged(log, "cannot work"))
			sent := 1001
			if test.fails {
				sent++
			}
			require.Len(t, b.all(), sent)
		})
	}
}

// loggedWaits are those of the relay before it tries again.
func loggedWaits(log *watermill.CaptureLoggerAdapter) (waits []time.Duration) {
	for _, entry := range log.Captured()[watermill.ErrorLogLevel] {
		if wait, ok := entry.Fields["wait"].(time.Duration); ok {
			waits = append(waits, wait)
		}
	}
	return waits
}

// The default is moved away from the sequence that the column owns: what that says of the offsets is nothing.
func TestOffsetsFromElsewhere(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"a sequence in a text": `alter table watermill_outbox alter "offset" set default nextval('offsets'::text)`,
		"another sequence":     `alter table watermill_outbox alter "offset" set default nextval('offsets')`,
		"a function": `create function next_offset() returns bigint language sql as $$ select nextval('offsets') $$;
			alter table watermill_outbox alter "offset" set default next_offset()`,
		"an identity": `alter table watermill_outbox alter "offset" drop default; drop sequence watermill_outbox_offset_seq;
			alter table watermill_outbox alter "offset" add generated by default as identity`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			b := newBroker()
			startRelay(t, pool, b, outbox.RelayConfig{})
			publish(t, pool, numbered(100, 3)...)
			b.wait(t, 100)
			drained(t, pool)
			_, err := pool.Exec(t.Context(), `create sequence offsets; `+change)
			require.NoError(t, err)
			for i := range 20 {
				publish(t, pool, newMessage("key", fmt.Sprint(i)))
			}
			b.wait(t, 120)
			drained(t, pool)
		})
	}
}

// The sequence's faults are found though the column does not own it.
func TestARelayRefusesASequenceOfNobodysWithACache(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	_, err := pool.Exec(t.Context(), `create sequence offsets cache 20; alter table watermill_outbox alter "offset" set default nextval('offsets')`)
	require.NoError(t, err)
	relay, err := outbox.NewRelay(pool, newBroker(), outbox.RelayConfig{}, nil)
	require.NoError(t, err)
	err = relay.Run(t.Context())
	require.ErrorIs(t, err, outbox.ErrSequence)
	require.ErrorContains(t, err, "public.offsets has cache 20")
}

// In a database that is not in UTF-8, the texts of errors may have letters that it lacks.
func TestErrorsWithLettersThatTheDatabaseLacks(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Latin1(t))
	_, err := pool.Exec(t.Context(), outbox.Config{}.Schema())
	require.NoError(t, err)
	b := newBroker()
	b.refuse = func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "bad" {
			return errors.New(`„soединение“ 😀`)
		}
		return nil
	}
	publish(t, pool, newMessage("a", "bad"))
	for range 5 {
		publish(t, pool, newMessage("b", "good"))
	}
	startRelay(t, pool, b, outbox.RelayConfig{MaxAttempts: 2})
	eventually(t, "it is parked", func() bool {
		publish(t, pool, newMessage("b", "good"))
		n, _, err := outbox.Config{}.CountParked(t.Context(), pool)
		return err == nil && n == 1
	})
	require.Equal(t, `\u201eso\u0435\u0434\u0438\u043d\u0435\u043d\u0438\u0435\u201c \U0001f600`, parked(t, pool)[0].LastError)
}

// Outboxes of one name in two schemas have nothing to do with each other: one has a relay, the other a stock subscriber.
func TestOutboxesInTwoSchemas(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	_, err := pool.Exec(t.Context(), `create schema other`)
	require.NoError(t, err)
	config := pool.Config()
	config.ConnConfig.RuntimeParams["search_path"] = "other"
	other, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(other.Close)
	relayed, forwarded := newBroker(), newBroker()
	startRelay(t, pool, relayed, outbox.RelayConfig{})
	publish(t, pool, newMessage("key", "public"))
	relayed.wait(t, 1)
	startForwarder(t, newDB(t, other), "", forwarded)
	inTx(t, other, func(tx pgx.Tx) {
		require.NoError(t, newPublisher(t, outbox.Config{}).PublishTx(t.Context(), tx, "topic", newMessage("key", "other")))
	})
	require.Equal(t, []string{"other"}, payloads(forwarded.wait(t, 1)))
	require.Equal(t, []string{"public"}, payloads(relayed.all()))
}
