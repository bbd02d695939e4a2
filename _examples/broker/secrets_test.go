package broker_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/_examples/broker"
)

// addresses of every scheme that connects, with a password, and with a second way to write it.
var withPassword = []string{
	"postgres://user:s3cr%40t-pass@HOST/db?sslmode=disable",
	"postgresql://HOST/db?user=user&password=s3cr%40t-pass",
	"kafka://user:s3cr%40t-pass@HOST",
	"nats://user:s3cr%40t-pass@HOST",
	"amqp://user:s3cr%40t-pass@HOST/vhost",
	"amqps://user:s3cr%40t-pass@HOST",
	"redis://user:s3cr%40t-pass@HOST/1",
	"rediss://:s3cr%40t-pass@HOST",
}

func requireNoSecret(t *testing.T, text string) {
	t.Helper()
	for _, form := range []string{"s3cr@t-pass", "s3cr%40t-pass", "s3cr", "t-pass"} {
		require.NotContains(t, text, form)
	}
}

// Nobody listens: refused at once, with a clear error.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	host := listener.Addr().String()
	require.NoError(t, listener.Close())
	for _, address := range withPassword {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			log, err := open(t, t.Context(), strings.ReplaceAll(address, "HOST", host))
			require.ErrorContains(t, err, "connection refused")
			require.ErrorContains(t, err, host)
			requireNoSecret(t, err.Error())
			requireNoSecret(t, log)
		})
	}
}

// Somebody listens and never says a word: the context bounds the wait.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	host := listen(t, func(net.Conn) {})
	for _, address := range withPassword {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			log, err := open(t, ctx, strings.ReplaceAll(address, "HOST", host))
			require.Error(t, err)
			require.Less(t, time.Since(start), 5*time.Second)
			requireNoSecret(t, err.Error())
			requireNoSecret(t, log)
		})
	}
}

// Somebody listens who repeats whatever he is told, as a server may whose errors quote the client.
func TestServerThatRepeats(t *testing.T) {
	t.Parallel()
	host := listen(t, func(conn net.Conn) {
		buffer := make([]byte, 4096)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			if _, err := conn.Write(append([]byte("-ERR "), buffer[:n]...)); err != nil {
				return
			}
		}
	})
	for _, address := range withPassword {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			log, err := open(t, ctx, strings.ReplaceAll(address, "HOST", host))
			if err != nil { // Redis, whose protocol is simple, may be content
				requireNoSecret(t, err.Error())
			}
			requireNoSecret(t, log)
		})
	}
}

func open(t *testing.T, ctx context.Context, address string) (log string, err error) {
	t.Helper()
	var text bytes.Buffer
	logger := watermill.NewSlogLogger(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: watermill.LevelTrace})))
	b, err := broker.Open(ctx, address, logger)
	if err == nil {
		require.NoError(t, b.Close())
	}
	return text.String(), err
}

// listen serves connections until the test ends.
func listen(t *testing.T, serve func(net.Conn)) (host string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	var conns []net.Conn
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
			go serve(conn)
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		<-done
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	return listener.Addr().String()
}
