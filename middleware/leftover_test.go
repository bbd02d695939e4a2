package middleware_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	once "github.com/watermill-once/watermill-once/middleware"
)

// gate stops a call between the look whether the attempt goes on and the use of the connection.
type gate struct{ entered, open chan struct{} }

func (g gate) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	close(g.entered)
	<-g.open
	return "insert into effects (event_id, note) values ('leaked', 'by a failed event')", nil, nil
}

// A goroutine that the handler of a failed event has left behind must not write into the transaction of another event.
func TestLeftoverCallStaysOutOfOtherEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	w.db = w.open(w.url + "&pool_max_conns=1")
	g := gate{make(chan struct{}), make(chan struct{})}
	leaked := make(chan error, 1)
	bad := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := once.PgxTx(msg.Context())
		go func() {
			_, err := tx.Exec(context.Background(), "", g)
			leaked <- err
		}()
		<-g.entered
		return nil, errors.New("failed")
	})
	require.ErrorContains(t, deliver(t, bad, newMessage("bad")), "goroutine")
	require.NoError(t, deliver(t, w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
		close(g.open)
		require.Error(t, <-leaked)
		return apply(msg)
	}), newMessage("good")))
	require.Zero(t, w.count(`select count(*) from effects where event_id = 'leaked'`))
	require.Equal(t, 1, w.effects())
}

// A statement that is still running when the handler returns fails the attempt, also where the handler reports success: what
// it writes would come too late. Over pgx its line is cut; another driver's is waited for.
func TestLeftoverStatement(t *testing.T) {
	eachDB(t, func(t *testing.T, w *world) {
		done := make(chan struct{})
		h := w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			var pid int
			var run func()
			if tx, ok := once.PgxTx(msg.Context()); ok {
				require.NoError(t, tx.QueryRow(msg.Context(), `select pg_backend_pid()`).Scan(&pid))
				run = func() { _, _ = tx.Exec(context.Background(), `select pg_sleep(3)`) }
			} else {
				tx, _ := once.SQLTx(msg.Context())
				require.NoError(t, tx.QueryRow(`select pg_backend_pid()`).Scan(&pid))
				run = func() { _, _ = tx.Exec(`select pg_sleep(3)`) }
			}
			go func() { defer close(done); run() }()
			require.Eventually(t, func() bool {
				return w.count(`select count(*) from pg_stat_activity where pid = $1 and query like '%pg_sleep%' and state = 'active'`, pid) == 1
			}, 10*time.Second, time.Millisecond)
			return nil, nil
		})
		require.ErrorContains(t, deliver(t, h, newMessage("event")), "goroutine")
		<-done
		w.requireNothing()
		require.NoError(t, deliver(t, w.consume(once.Config{}, apply), newMessage("event")))
	})
}
