package middleware_test

import (
	"database/sql"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	once "github.com/watermill-once/watermill-once/middleware"
)

var (
	db      *sql.DB
	account = "account-1"
	receipt = newMessage("receipt")
)

// The README shows the two functions between these lines.

// README begins
func naive(msg *message.Message) ([]*message.Message, error) {
	var seen bool
	err := db.QueryRow(`select exists (select from processed where id = $1)`, msg.UUID).Scan(&seen)
	if err != nil || seen { // two copies at once both see nothing
		return nil, err
	}
	if _, err := db.Exec(`update accounts set balance = balance - 1250 where id = $1`, account); err != nil {
		return nil, err
	}
	// a crash here: paid, and not marked; the redelivery pays again
	_, err = db.Exec(`insert into processed (id) values ($1)`, msg.UUID)
	return []*message.Message{receipt}, err // published after all that: a crash here loses it
}

func handler(msg *message.Message) ([]*message.Message, error) { // behind once.Transactional
	tx, _ := once.PgxTx(msg.Context())
	_, err := tx.Exec(msg.Context(), `update accounts set balance = balance - 1250 where id = $1`, account)
	return []*message.Message{receipt}, err
}

// README ends

func TestReadmeShowsThisCode(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("readme_test.go")
	require.NoError(t, err)
	_, code, _ := strings.Cut(string(source), "// README begins\n")
	code, _, _ = strings.Cut(code, "\n// README ends\n")
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "```go\n"+code+"```\n")
}

// What the README says of them: an attempt fails after the payment, and is delivered again.
func TestReadmeTellsTheTruth(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	_, err := w.pool.Exec(t.Context(), `
		create table accounts (id text, balance bigint);
		insert into accounts values ('account-1', 10000);
		create table processed (id text);
		create sequence inserts;
		create function fails_once() returns trigger language plpgsql as $$
			begin if nextval('inserts') = 1 then raise exception 'the process dies here'; end if; return new; end $$;
		create trigger fails_once before insert on processed for each row execute function fails_once()`)
	require.NoError(t, err)
	db, err = sql.Open("pgx", w.url)
	require.NoError(t, err)
	defer db.Close()

	_, err = naive(newMessage("event"))
	require.Error(t, err)
	_, err = naive(newMessage("event"))
	require.NoError(t, err)
	require.Equal(t, 10000-2*1250, w.count(`select balance from accounts`), "paid twice")

	fail := errors.New("the process dies here")
	send := w.route(once.Config{Outbox: newPublisher(t)}, func(msg *message.Message) ([]*message.Message, error) {
		produced, err := handler(msg)
		return produced, errors.Join(err, fail)
	})
	require.ErrorIs(t, send(newMessage("event")), fail)
	fail = nil
	for range 3 {
		require.NoError(t, send(newMessage("event")))
	}
	require.Equal(t, 10000-3*1250, w.count(`select balance from accounts`), "paid once more")
	require.Equal(t, 1, w.outbox())
}
