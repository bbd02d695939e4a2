package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"

	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
	"github.com/watermill-once/watermill-once/outbox"
)

const (
	topic      = "card-updated"
	partitions = 4
	keys       = 1000
)

// world is what the ways share.
type world struct {
	pool     *pgxpool.Pool
	brokers  []string
	messages []*message.Message
	closers  []func()
}

func newWorld(ctx context.Context, answer time.Duration, n int) (w *world, err error) {
	w = &world{}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	server, err := pgserver.Start(ctx, pgserver.Config{})
	if err != nil {
		return nil, err
	}
	w.closing(server)
	if w.pool, err = pgxpool.New(ctx, server.URL("postgres")); err != nil {
		return nil, err
	}
	w.closers = append(w.closers, w.pool.Close)
	publisher, err := outbox.NewPublisher(outbox.Config{})
	if err != nil {
		return nil, err
	}
	if err := once.InitializeSchema(ctx, once.Pgx(w.pool), publisher); err != nil {
		return nil, err
	}
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, topic), kfake.ListenFn(slow(answer)))
	if err != nil {
		return nil, err
	}
	w.closers = append(w.closers, kafka.Close)
	w.brokers = kafka.ListenAddrs()

	for i := range n {
		msg := message.NewMessage(fmt.Sprintf("0192f1c2-0000-7000-8000-%012x", i), fmt.Appendf(nil,
			`{"type":"card.updated","card":"card-%d","status":"active","amount":1250,"currency":"EUR","note":"a payload of about the size that webhooks have"}`, i%keys))
		msg.Metadata.Set(outbox.PartitionKeyKey, fmt.Sprint("card-", i%keys))
		msg.Metadata.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		w.messages = append(w.messages, msg)
	}
	return w, nil
}

// closing has c closed with the world: what was opened last is closed first.
func (w *world) closing(c io.Closer) { w.closers = append(w.closers, func() { _ = c.Close() }) }

func (w *world) close() {
	for i := len(w.closers) - 1; i >= 0; i-- {
		w.closers[i]()
	}
}

// fill empties the tables and has publish write all messages, some at a time.
func (w *world) fill(ctx context.Context, tables string, publish func(some []*message.Message) error) error {
	if _, err := w.pool.Exec(ctx, "truncate "+tables); err != nil {
		return err
	}
	for i := 0; i < len(w.messages); i += 500 {
		if err := publish(w.messages[i:min(i+500, len(w.messages))]); err != nil {
			return err
		}
	}
	_, err := w.pool.Exec(ctx, "vacuum analyze "+tables)
	return err
}

// slow makes listeners whose connections wait before each answer.
func slow(answer time.Duration) func(network, address string) (net.Listener, error) {
	return func(network, address string) (net.Listener, error) {
		listener, err := net.Listen(network, address)
		return slowListener{listener, answer}, err
	}
}

type slowListener struct {
	net.Listener
	answer time.Duration
}

func (l slowListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return slowConn{conn, l.answer}, err
}

type slowConn struct {
	net.Conn
	answer time.Duration
}

func (c slowConn) Write(b []byte) (int, error) {
	time.Sleep(c.answer)
	return c.Conn.Write(b)
}
