package oncetest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/middleware/oncetest"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(oncetest.Main(m)) }

// fake is a test that may fail without failing the one around it.
type fake struct {
	testing.TB
	mu     sync.Mutex
	failed []string
	logged []string
}

func (f *fake) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = append(f.failed, fmt.Sprintf(format, args...))
}

func (f *fake) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	f.FailNow()
}

func (f *fake) FailNow() { runtime.Goexit() }

func (f *fake) Log(args ...any) { f.logged = append(f.logged, fmt.Sprint(args...)) }

// try runs a proof that may fail, and gives what it said.
func try(t *testing.T, proof func(t testing.TB)) *fake {
	t.Helper()
	f := &fake{TB: t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		proof(f)
	}()
	<-ended
	return f
}

// caught runs a proof that must fail, and gives its report.
func caught(t *testing.T, proof func(t testing.TB)) string {
	t.Helper()
	f := try(t, proof)
	require.Len(t, f.failed, 1, "the proof must fail, once")
	return f.failed[0]
}

// sequence is the numbered lines of a report.
func sequence(report string) (lines []string) {
	for line := range strings.Lines(report) {
		if number, text, ok := strings.Cut(strings.TrimSpace(line), ". "); ok && strings.HasPrefix(line, "  ") && strings.Trim(number, "0123456789") == "" {
			lines = append(lines, text)
		}
	}
	return lines
}

// change is the payload of the tests' events.
type change struct {
	ID      string `json:"id"`
	Card    string `json:"card"`
	Version int    `json:"version"`
	Status  string `json:"status"`
	Amount  int    `json:"amount"`
}

// history is that of two cards.
func history() []*message.Message {
	var events []*message.Message
	for i, c := range []change{
		{Card: "card-1", Version: 1, Status: "active", Amount: 10},
		{Card: "card-1", Version: 2, Status: "paused", Amount: 20},
		{Card: "card-2", Version: 1, Status: "active", Amount: 40},
		{Card: "card-1", Version: 3, Status: "closed", Amount: 80},
	} {
		c.ID = fmt.Sprintf("evt-%d", i+1)
		payload, err := json.Marshal(c)
		if err != nil {
			panic(err)
		}
		events = append(events, message.NewMessage(c.ID, payload))
	}
	return events
}

var position = ordering.JSONFields("card", "version")

const tables = `
create table if not exists cards (
  card text primary key,
  status text not null default '',
  version bigint not null default 0,
  balance bigint not null default 1000,
  updated_at timestamptz not null default now()
);
create table if not exists payments (
  id bigserial primary key,
  card text not null,
  amount bigint not null,
  paid_at timestamptz not null default now()
);
create table if not exists processed (key text primary key);
insert into cards (card) values ('card-1'), ('card-2') on conflict do nothing;`

// by makes a Setup of a handler that does all by hand.
func by(handle func(ctx context.Context, db oncetest.Database, c change, msg *message.Message) error) oncetest.Setup {
	return func(t testing.TB, db oncetest.Database) message.HandlerFunc {
		_, err := db.Pool.Exec(t.Context(), tables)
		require.NoError(t, err)
		return func(msg *message.Message) ([]*message.Message, error) {
			var c change
			if err := json.Unmarshal(msg.Payload, &c); err != nil {
				return nil, err
			}
			return nil, handle(msg.Context(), db, c, msg)
		}
	}
}

// right makes a Setup of a handler behind the middleware.
func right(config once.Config, handle func(ctx context.Context, c change) ([]*message.Message, error)) oncetest.Setup {
	return func(t testing.TB, db oncetest.Database) message.HandlerFunc {
		_, err := db.Pool.Exec(t.Context(), tables)
		require.NoError(t, err)
		if config.Outbox == nil {
			config.Outbox, err = outbox.NewPublisher(outbox.Config{})
			require.NoError(t, err)
		}
		require.NoError(t, once.InitializeSchema(t.Context(), once.Pgx(db.Pool), config))
		transactional, err := once.Transactional(once.Pgx(db.Pool), config)
		require.NoError(t, err)
		return transactional(func(msg *message.Message) ([]*message.Message, error) {
			var c change
			if err := json.Unmarshal(msg.Payload, &c); err != nil {
				return nil, err
			}
			return handle(msg.Context(), c)
		})
	}
}

func pay(ctx context.Context, c change) error {
	tx, _ := once.PgxTx(ctx)
	if _, err := tx.Exec(ctx, `update cards set balance = balance - $2, updated_at = now() where card = $1`, c.Card, c.Amount); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `insert into payments (card, amount) values ($1, $2)`, c.Card, c.Amount)
	return err
}
