package middleware_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/internal/tcpproxy"
	once "github.com/watermill-once/watermill-once/middleware"
)

// opaque is a driver as tracing libraries wrap them: it hides pgx, and does not say whether a connection is still valid.
type opaque struct{ inner driver.Driver }

func (d opaque) Open(name string) (driver.Conn, error) {
	conn, err := d.inner.Open(name)
	if err != nil {
		return nil, err
	}
	return &opaqueConn{conn}, nil
}

type opaqueConn struct{ inner driver.Conn }

func (c *opaqueConn) Prepare(query string) (driver.Stmt, error) { return c.inner.Prepare(query) }
func (c *opaqueConn) Close() error                              { return c.inner.Close() }

//lint:ignore SA1019 driver.Conn has the method
func (c *opaqueConn) Begin() (driver.Tx, error) { return c.inner.Begin() }
func (c *opaqueConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.inner.(driver.ExecerContext).ExecContext(ctx, query, args)
}
func (c *opaqueConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.inner.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func init() {
	sql.Register("opaque-pgx", opaque{stdlib.GetDefaultDriver()})
	sql.Register("opaque-pq", opaque{&pq.Driver{}})
}

func eachWrapped(t *testing.T, f func(t *testing.T, w *world, open func(url string) once.DB)) {
	for _, name := range []string{"opaque-pgx", "opaque-pq"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "sql-pq")
			open := func(url string) once.DB {
				db, err := sql.Open(name, url)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, db.Close()) })
				return once.SQL(db)
			}
			w.db = open(w.url)
			f(t, w, open)
		})
	}
}

func TestWrappedDriver(t *testing.T) {
	eachWrapped(t, func(t *testing.T, w *world, _ func(string) once.DB) { w.everyOutcome() })
}

func TestOutageOnAWrappedDriver(t *testing.T) {
	eachWrapped(t, func(t *testing.T, w *world, open func(string) once.DB) {
		err := deliver(t, w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			err := exec(msg.Context(), `select pg_terminate_backend(pg_backend_pid())`)
			return nil, fmt.Errorf("my step: %v", err) // in the handler's own words
		}), newMessage("event"))
		require.Error(t, err)
		require.False(t, once.ShouldPoison(err), "%v", err)

		proxy, through := pgtest.Proxy(t, w.url)
		w.db = open(through)
		var armed atomic.Bool
		proxy.OnData(func(d tcpproxy.Direction, _ []byte) bool { return !(armed.Load() && d == tcpproxy.FromServer) })
		err = deliver(t, w.consume(once.Config{}, func(msg *message.Message) ([]*message.Message, error) {
			_, err := apply(msg)
			armed.Store(true)
			return nil, err
		}), newMessage("event"))
		require.Error(t, err)
		require.False(t, once.ShouldPoison(err), "%v", err)
	})
}

// The network takes everything and gives nothing from when the handler returns: CommitTimeout bounds all that follows.
func TestCommitTimeout(t *testing.T) {
	for _, name := range []string{"pgx", "sql-pgx", "opaque-pgx"} { // lib/pq does not heed contexts while it reads
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "pgx")
			proxy, through := pgtest.Proxy(t, w.url)
			if name == "opaque-pgx" {
				db, err := sql.Open(name, through)
				require.NoError(t, err)
				defer db.Close()
				w.db = once.SQL(db)
			} else {
				w.driver = name
				w.db = w.open(through)
			}
			// Warmed up, so that nothing has to be prepared any more.
			h := w.consume(once.Config{LockTimeout: 100 * time.Millisecond, CommitTimeout: 300 * time.Millisecond}, func(msg *message.Message) ([]*message.Message, error) {
				_, err := apply(msg)
				proxy.Hold(tcpproxy.ToServer, msg.UUID == "event")
				return nil, err
			})
			require.NoError(t, deliver(t, h, newMessage("warm-up")))
			done := make(chan error, 1)
			go func() {
				_, err := h(newMessage("event"))
				done <- err
			}()
			select {
			case err := <-done:
				require.Error(t, err)
				require.False(t, once.ShouldPoison(err), "%v", err)
			case <-time.After(30 * time.Second):
				t.Error("still waiting")
				proxy.Cut()
				<-done
			}
		})
	}
}
