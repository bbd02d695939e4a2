package oncetest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

// Postgres gives an empty database that goes with the test, on a PostgreSQL that is started at the first use and that all tests of
// the process share: see package pgserver. Any Setup may be called with it, and the handler be tested by hand.
func Postgres(t testing.TB) Database {
	t.Helper()
	s, blank := sharedServer(t)
	name := newDatabase(t, s, blank)
	t.Cleanup(func() { dropDatabase(t, s, name) })
	db := Database{URL: s.URL(name), Pool: newPool(t, s.URL(name)), Broker: &broker{}}
	t.Cleanup(func() { closePool(t, db.Pool) })
	return db
}

// Main wraps a testing.M, or what else runs all tests: when they have run, the server that they share is stopped. Without it the server
// ends with the process. It is for a TestMain that looks for what tests have left behind:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(oncetest.Main(m)) }
func Main(m interface{ Run() int }) interface{ Run() int } { return stopping{m} }

type stopping struct{ tests interface{ Run() int } }

func (s stopping) Run() int {
	code := s.tests.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		return code
	}
	if err := shared.server.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "oncetest:", err)
		code = max(code, 1)
	}
	shared.server, shared.blank = nil, ""
	return code
}

var shared struct {
	sync.Mutex
	server *pgserver.Server
	blank  string // an empty database that others are copies of
}

// patience bounds what is no handler's doing, with room for the download of a server.
const patience = 5 * time.Minute

func sharedServer(t testing.TB) (server *pgserver.Server, blank string) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		server, err := pgserver.Start(ctx, pgserver.Config{})
		check(t, err)
		shared.server = server
	}
	if shared.blank == "" {
		name := newDatabase(t, shared.server, "")
		// The first connection to a database of PostgreSQL's own template fills a cache in its files: copies have it then.
		check(t, connect(t, shared.server, name).Close(t.Context()))
		shared.blank = name
	}
	return shared.server, shared.blank
}

func newDatabase(t testing.TB, s *pgserver.Server, template string) string {
	t.Helper()
	name, err := s.NewDatabase(t.Context(), template)
	check(t, err)
	return name
}

func dropDatabase(t testing.TB, s *pgserver.Server, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.DropDatabase(ctx, name); err != nil {
		t.Errorf("oncetest: %v", err)
	}
}

// maxConns lets many copies of an event be handled at once.
const maxConns = 16

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	check(t, err)
	config.MaxConns = maxConns
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	check(t, err)
	return pool
}

// closePool does not wait for ever, as Close does, for a connection that a handler kept.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
		t.Errorf("oncetest: %d connections were not given back to Database.Pool", pool.Stat().AcquiredConns())
	}
}

// connect opens a connection to look at a database from outside, over the socket: past any proxy, and without a password.
func connect(t testing.TB, s *pgserver.Server, name string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(s.SocketURL(name))
	check(t, err)
	config.RuntimeParams["application_name"] = observer
	conn, err := pgx.ConnectConfig(t.Context(), config)
	check(t, err)
	return conn
}

// observer is the application_name of our own connections.
const observer = "oncetest"

// check ends the test where the kit itself cannot work.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("oncetest: %v", err)
	}
}
