package servers

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/child"
)

// NATS gives the URL of a server with JetStream.
func NATS(t testing.TB) string {
	t.Helper()
	if url := os.Getenv("NATS_URL"); url != "" {
		return url
	}
	program := installed(t, "NATS_URL", "nats-server", "/usr/sbin/nats-server")
	d := newDirectory(t)
	port := freePort(t)
	d.start(t, port, program, "-js", "-sd", filepath.Join(d.path, "data"), "-a", "127.0.0.1", "-p", port)
	return "nats://127.0.0.1:" + port
}

// Redis gives the URL of a server that has an entry on disk when it answers.
func Redis(t testing.TB) string {
	t.Helper()
	if url := os.Getenv("REDIS_URL"); url != "" {
		return url
	}
	program := installed(t, "REDIS_URL", "redis-server", "/usr/bin/redis-server")
	d := newDirectory(t)
	port := freePort(t)
	d.start(t, port, program, "--bind", "127.0.0.1", "--port", port, "--dir", d.path, "--appendonly", "yes", "--appendfsync", "always", "--save", "")
	return "redis://127.0.0.1:" + port
}

// RabbitMQ gives the URL of a server. The package's own program wants to be root or rabbitmq, and to write to /var: this is the
// one behind it.
func RabbitMQ(t testing.TB) string {
	t.Helper()
	if url := os.Getenv("AMQP_URL"); url != "" {
		return url
	}
	program := installed(t, "AMQP_URL", "rabbitmq-server", "/usr/lib/rabbitmq/bin/rabbitmq-server")
	epmd := installed(t, "AMQP_URL", "epmd", "/usr/bin/epmd")

	// Erlang's register of names. The server would start one that outlives it.
	names := newDirectory(t)
	namesPort := freePort(t)
	names.start(t, namesPort, epmd, "-address", "127.0.0.1", "-port", namesPort)

	d := newDirectory(t)
	port, nodePort := freePort(t), freePort(t)
	write := func(name, text string) string {
		path := filepath.Join(d.path, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	config := write("rabbitmq.conf", "listeners.tcp.1 = 127.0.0.1:"+port+"\nlog.console = true\nlog.file = false\n"+
		"disk_free_limit.absolute = 10MB\nvm_memory_high_watermark.absolute = 512MB\n")
	d.start(t, port, "/usr/bin/env",
		"HOME="+d.path, // of the cookie
		"RABBITMQ_NODENAME=once"+port+"@localhost", "RABBITMQ_NODE_PORT="+port, "RABBITMQ_DIST_PORT="+nodePort,
		"ERL_EPMD_PORT="+namesPort, "ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_CONF_ENV_FILE="+write("env.conf", ""), "RABBITMQ_CONFIG_FILE="+config, "RABBITMQ_ADVANCED_CONFIG_FILE="+write("advanced.config", "[]."),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+write("plugins", "[]."),
		"RABBITMQ_MNESIA_BASE="+filepath.Join(d.path, "data"), "RABBITMQ_LOG_BASE="+filepath.Join(d.path, "log"),
		"RABBITMQ_PID_FILE="+filepath.Join(d.path, "pid"),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none",
		"RABBITMQ_ALLOW_INPUT=1", // to be this very process, and not its child
		program, "-noinput")
	return "amqp://guest:guest@127.0.0.1:" + port
}

// installed finds a program.
func installed(t testing.TB, variable, name, usual string) string {
	t.Helper()
	if info, err := os.Stat(usual); err == nil && !info.IsDir() {
		return usual
	}
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, variable, "not set, and no %s is installed", name)
	}
	return path
}

// missing ends a test whose server is not there.
func missing(t testing.TB, variable, format string, args ...any) {
	t.Helper()
	reason := variable + ": " + fmt.Sprintf(format, args...)
	if os.Getenv("CI") != "" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

func freePort(t testing.TB) string {
	t.Helper()
	port, err := child.FreePort()
	require.NoError(t, err)
	return strconv.Itoa(port)
}

// longest bounds the start of a server.
const longest = 4 * time.Minute

// directory is what one server has, and the guard over both.
type directory struct {
	path    string
	guard   *child.Guard
	log     *child.Tail
	process *child.Process
}

// account is the program's own: these servers do not mind being root.
var account = &child.Account{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}

func newDirectory(t testing.TB) *directory {
	t.Helper()
	path, err := account.TempDir(t.Context(), "broker-", os.TempDir())
	require.NoError(t, err)
	d := &directory{path: path, log: child.NewTail(io.Discard)}
	d.guard, err = child.NewGuard(path, "")
	require.NoError(t, err)
	t.Cleanup(func() {
		if d.process != nil {
			// No farewell: its data goes anyway.
			_ = d.process.End(syscall.SIGKILL, longest)
			require.NoError(t, d.guard.Watch(nil))
		}
		require.NoError(t, d.guard.Close())
	})
	return d
}

// start runs the server until it takes connections.
func (d *directory) start(t testing.TB, port, program string, args ...string) {
	t.Helper()
	var err error
	d.process, err = account.Start(d.path, d.log, program, args...)
	require.NoError(t, err)
	require.NoError(t, d.guard.Watch(d.process))
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-d.process.Done():
			require.Fail(t, "the server ended at its start", "%s\n%s", program, d.log)
		case <-ctx.Done():
			require.Fail(t, "the server does not take connections", "%s\n%s", program, d.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
