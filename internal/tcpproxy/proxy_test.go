package tcpproxy_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/internal/tcpproxy"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestPassesAllOn(t *testing.T) {
	t.Parallel()
	_, through := pgtest.Proxy(t, pgtest.URL(t))
	conn := connect(t, through)
	sent := make([]byte, 5<<20)
	_, _ = rand.Read(sent)
	var got []byte
	require.NoError(t, conn.QueryRow(t.Context(), "select $1::bytea", sent).Scan(&got))
	require.Equal(t, sent, got)
	require.NoError(t, conn.Close(t.Context()), "the end of the connection is passed on")
}

func TestCut(t *testing.T) {
	t.Parallel()
	proxy, through := pgtest.Proxy(t, pgtest.URL(t))
	conn, other := connect(t, through), connect(t, through)
	sent := make(chan struct{})
	proxy.OnData(func(tcpproxy.Direction, []byte) bool {
		close(sent)
		return true
	})
	ended := make(chan error)
	go func() {
		_, err := conn.Exec(t.Context(), "select pg_sleep(60)", pgx.QueryExecModeSimpleProtocol)
		ended <- err
	}()
	<-sent
	proxy.OnData(nil)
	proxy.Cut()
	require.Error(t, <-ended)
	require.Error(t, other.Ping(t.Context()))
	require.NoError(t, connect(t, through).Ping(t.Context()), "new connections work")
}

func TestDown(t *testing.T) {
	t.Parallel()
	proxy, through := pgtest.Proxy(t, pgtest.URL(t))
	open := connect(t, through)
	proxy.Down(true)
	_, err := pgx.Connect(t.Context(), through)
	require.Error(t, err)
	require.NoError(t, open.Ping(t.Context()), "open connections stay")
	proxy.Down(false)
	connect(t, through)
}

func TestHoldFromServer(t *testing.T) {
	t.Parallel()
	proxy, direct, through := table(t)
	conn := connect(t, through)
	proxy.Hold(tcpproxy.FromServer, true)
	inserted := insert(t, conn)
	waitForRow(t, direct)
	requireSilence(t, inserted)
	proxy.Hold(tcpproxy.FromServer, false)
	require.NoError(t, <-inserted)
}

func TestHoldToServer(t *testing.T) {
	t.Parallel()
	proxy, direct, through := table(t)
	conn, other := connect(t, through), connect(t, through)
	proxy.Hold(tcpproxy.ToServer, true)
	inserted := insert(t, conn)
	requireSilence(t, inserted)
	require.Zero(t, rows(t, direct))
	proxy.Hold(tcpproxy.ToServer, false)
	require.NoError(t, <-inserted)

	proxy.Hold(tcpproxy.ToServer, true)
	lost := insert(t, other)
	requireSilence(t, lost)
	proxy.Cut()
	require.Error(t, <-lost)
	require.Equal(t, 1, rows(t, direct), "what was held when the connection was cut is lost")
}

// The fault that every promise about COMMIT has to survive: the server has committed, and the client never hears of it.
func TestOnDataCutsAtTheAnswerToACommit(t *testing.T) {
	t.Parallel()
	proxy, direct, through := table(t)
	conn := connect(t, through)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "insert into made values (1)")
	require.NoError(t, err)

	proxy.OnData(func(direction tcpproxy.Direction, _ []byte) bool { return direction == tcpproxy.ToServer })
	require.Error(t, tx.Commit(t.Context()))
	require.Equal(t, 1, rows(t, direct))
	proxy.OnData(nil)
	require.NoError(t, connect(t, through).Ping(t.Context()))
}

// Each byte takes as long as it would alone, though many others are on their way: a line with a delay, not a slow one.
func TestLatencyDelaysAndDoesNotThrottle(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	proxy, err := tcpproxy.Start(listener.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, proxy.Close()) }()
	const latency, bytes = 400 * time.Millisecond, 40
	require.NoError(t, proxy.Latency(latency))

	client, err := net.Dial("tcp", proxy.Addr())
	require.NoError(t, err)
	server, err := listener.Accept()
	require.NoError(t, err)
	echo := make(chan struct{})
	go func() {
		defer close(echo)
		_, _ = io.Copy(server, server)
		_ = server.Close()
	}()
	sent := make(chan time.Time, bytes)
	go func() {
		pace := time.NewTicker(latency / 20)
		defer pace.Stop()
		for range bytes {
			sent <- <-pace.C
			if _, err := client.Write([]byte{0}); err != nil {
				t.Error(err)
			}
		}
	}()
	var took []time.Duration
	for range bytes {
		_, err := io.ReadFull(client, make([]byte, 1))
		require.NoError(t, err)
		took = append(took, time.Since(<-sent))
	}
	require.NoError(t, client.Close())
	<-echo
	slices.Sort(took)
	require.GreaterOrEqual(t, took[0], latency-time.Millisecond)
	require.Less(t, took[bytes/2], latency+latency/8)
}

func TestCutEndsAWait(t *testing.T) {
	t.Parallel()
	proxy, through := pgtest.Proxy(t, pgtest.URL(t))
	conn := connect(t, through)
	require.NoError(t, proxy.Latency(time.Hour))
	proxy.OnData(func(tcpproxy.Direction, []byte) bool {
		go proxy.Cut()
		return true
	})
	require.Error(t, conn.Ping(t.Context()))
}

func TestRoundTrips(t *testing.T) {
	t.Parallel()
	proxy, through := pgtest.Proxy(t, pgtest.URL(t))
	conn := connect(t, through)
	trips := func(want int, do func()) {
		t.Helper()
		proxy.Reset()
		do()
		require.Equal(t, want, proxy.RoundTrips())
	}
	query := func() {
		_, err := conn.Exec(t.Context(), "select $1::text", "a")
		require.NoError(t, err)
	}
	trips(2, query) // it is prepared first
	trips(1, query)
	trips(3, func() { query(); query(); query() })
	trips(1, func() {
		batch := &pgx.Batch{}
		for range 50 {
			batch.Queue("select $1::text", "a")
		}
		require.NoError(t, conn.SendBatch(t.Context(), batch).Close())
	})
	trips(3, func() {
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		query()
		require.NoError(t, tx.Commit(t.Context()))
	})
	trips(1, func() {
		big := make([]byte, 1<<20)
		_, err := conn.Exec(t.Context(), "select $1::text where length($2) > 0", pgx.QueryExecModeExec, "a", big)
		require.NoError(t, err)
	})
	trips(0, func() { require.NoError(t, conn.Close(t.Context())) })

	db, err := sql.Open("postgres", through)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	db.SetMaxOpenConns(1)
	require.NoError(t, db.PingContext(t.Context()))
	trips(2, func() { // lib/pq prepares each time
		_, err := db.ExecContext(t.Context(), "select $1::text", "a")
		require.NoError(t, err)
	})
}

func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// table gives a pool past the proxy, and a URL through it, to a database with an empty table in it.
func table(t *testing.T) (proxy *tcpproxy.Proxy, direct *pgxpool.Pool, through string) {
	t.Helper()
	url := pgtest.URL(t)
	direct = pgtest.PoolOn(t, url)
	_, err := direct.Exec(t.Context(), "create table made (id int)")
	require.NoError(t, err)
	proxy, through = pgtest.Proxy(t, url)
	return proxy, direct, through
}

func insert(t *testing.T, conn *pgx.Conn) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "insert into made values (1)")
		done <- err
	}()
	return done
}

func requireSilence(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		require.FailNow(t, "not held back", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
}

func rows(t require.TestingT, pool *pgxpool.Pool) (n int) {
	require.NoError(t, pool.QueryRow(context.Background(), "select count(*) from made").Scan(&n))
	return n
}

func waitForRow(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) { require.Equal(c, 1, rows(c, pool)) }, 10*time.Second, time.Millisecond)
}

// Each connection is seen by a function of its own, which may cut it and hold it back; the others do not notice.
func TestOnConnectSeesEachConnectionByItself(t *testing.T) {
	t.Parallel()
	proxy, _, through := table(t)
	var (
		connections atomic.Int32
		cutFirst    atomic.Bool
		held        = make(chan struct{})
	)
	proxy.OnConnect(func() func(tcpproxy.Direction, []byte) bool {
		n := connections.Add(1)
		return func(tcpproxy.Direction, []byte) bool {
			switch n {
			case 1:
				return !cutFirst.Load()
			case 2:
				<-held
			}
			return true
		}
	})
	first := connect(t, through)
	second := make(chan error, 1)
	go func() {
		conn, err := pgx.Connect(context.Background(), through)
		if err == nil {
			err = conn.Close(context.Background())
		}
		second <- err
	}()
	require.Eventually(t, func() bool { return connections.Load() == 2 }, 10*time.Second, time.Millisecond)
	third := connect(t, through)
	proxy.OnConnect(nil)
	require.NoError(t, connect(t, through).Ping(t.Context()))
	require.EqualValues(t, 3, connections.Load())

	cutFirst.Store(true)
	require.Error(t, first.Ping(t.Context()))
	require.NoError(t, third.Ping(t.Context()))
	select {
	case err := <-second:
		t.Fatal("it was not held back", err)
	default:
	}
	close(held)
	require.NoError(t, <-second)
}
