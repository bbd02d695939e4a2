package outbox_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

// childVariable makes this test program a relay.
const childVariable = "OUTBOX_TEST_RELAY"

// childConfig is what such a relay needs to know.
type childConfig struct {
	URL, Socket string
	Relay       outbox.RelayConfig
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		fmt.Fprintln(os.Stderr, runChild(text))
		os.Exit(1)
	}
	pgtest.Main(m)
}

func runChild(text string) error {
	var config childConfig
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return err
	}
	pool, err := pgxpool.New(context.Background(), config.URL)
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(pool, &remoteBroker{socket: config.Socket}, config.Relay, nil)
	if err != nil {
		return err
	}
	return relay.Run(context.Background())
}

// remoteBroker hands messages to the queue of the test, and waits for its answer: so the test knows in which order they
// were taken, whatever becomes of the process.
type remoteBroker struct {
	socket string
	mu     sync.Mutex
	idle   []net.Conn
}

func (b *remoteBroker) Publish(topic string, msgs ...*message.Message) error {
	conn, err := b.conn()
	if err != nil {
		return err
	}
	for _, msg := range msgs {
		if _, err := fmt.Fprintln(conn, os.Getpid(), msg.Metadata[outbox.PartitionKeyKey], string(msg.Payload)); err != nil {
			return err
		}
		answer := make([]byte, 1)
		if _, err := conn.Read(answer); err != nil {
			return err
		}
		if answer[0] != '+' {
			return errors.New("refused")
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.idle = append(b.idle, conn)
	return nil
}

func (b *remoteBroker) conn() (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.idle); n > 0 {
		conn := b.idle[n-1]
		b.idle = b.idle[:n-1]
		return conn, nil
	}
	return net.Dial("unix", b.socket)
}

func (b *remoteBroker) Close() error { return nil }

// delivery is a message that a queue has got.
type delivery struct {
	pid     int
	key     string
	payload string
}

// queue is the broker of relays in other processes.
type queue struct {
	socket   string
	listener net.Listener
	serving  sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	got     []delivery
	changed chan struct{}
	refuse  func(d delivery) bool
	stuck   chan struct{} // while not nil, answers wait for it to be closed
}

func newQueue(t *testing.T) *queue {
	t.Helper()
	q := &queue{
		socket: filepath.Join(t.TempDir(), "q"), changed: make(chan struct{}), conns: make(map[net.Conn]struct{}),
	}
	var err error
	q.listener, err = net.Listen("unix", q.socket)
	require.NoError(t, err)
	q.serving.Go(q.accept)
	t.Cleanup(func() {
		q.listener.Close()
		q.mu.Lock()
		for conn := range q.conns {
			conn.Close()
		}
		q.mu.Unlock()
		q.serving.Wait()
	})
	return q
}

func (q *queue) accept() {
	for {
		conn, err := q.listener.Accept()
		if err != nil {
			return
		}
		q.mu.Lock()
		q.conns[conn] = struct{}{}
		q.mu.Unlock()
		q.serving.Go(func() { q.serve(conn) })
	}
}

func (q *queue) serve(conn net.Conn) {
	defer conn.Close()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		pid, rest, _ := strings.Cut(lines.Text(), " ")
		d := delivery{}
		d.pid, _ = strconv.Atoi(pid)
		d.key, d.payload, _ = strings.Cut(rest, " ")
		answer := byte('+')
		q.mu.Lock()
		if q.refuse != nil && q.refuse(d) {
			answer = '-'
		} else {
			q.got = append(q.got, d)
			close(q.changed)
			q.changed = make(chan struct{})
		}
		stuck := q.stuck
		q.mu.Unlock()
		if stuck != nil {
			<-stuck
		}
		if _, err := conn.Write([]byte{answer}); err != nil {
			return
		}
	}
}

func (q *queue) all() []delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.got[:len(q.got):len(q.got)]
}

// wait waits until what has come fulfils a condition.
func (q *queue) wait(t *testing.T, what string, condition func(all []delivery) bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		q.mu.Lock()
		got, changed := q.got[:len(q.got):len(q.got)], q.changed
		q.mu.Unlock()
		if condition(got) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			require.FailNow(t, "waited in vain until "+what, "%d deliveries", len(got))
		}
	}
}

// process is a relay that is a process of its own.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
}

func startProcess(t *testing.T, url string, q *queue, config outbox.RelayConfig) *process {
	t.Helper()
	text, err := json.Marshal(childConfig{URL: url, Socket: q.socket, Relay: config})
	require.NoError(t, err)
	p := &process{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	return p
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill is kill -9.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		require.NoError(p.t, p.cmd.Process.Kill())
		require.Error(p.t, p.cmd.Wait())
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// requireInOrder requires that every number from 0 to count was delivered, those of a key in their order: number i
// belongs to key i modulo keys. Repeats are dropped first. It gives how many there were.
func requireInOrder(t *testing.T, all []delivery, count, keys int) (repeats int) {
	t.Helper()
	seen, next := make(map[string]bool), make(map[int]int)
	for _, d := range all {
		if seen[d.payload] {
			repeats++
			continue
		}
		seen[d.payload] = true
		number, err := strconv.Atoi(d.payload)
		require.NoError(t, err)
		key := number % keys
		require.Equal(t, fmt.Sprint("key-", key), d.key)
		require.Equal(t, key+keys*next[key], number, "key %d", key)
		next[key]++
	}
	require.Len(t, seen, count)
	return repeats
}

func distinct(all []delivery) int {
	seen := make(map[string]bool)
	for _, d := range all {
		seen[d.payload] = true
	}
	return len(seen)
}
