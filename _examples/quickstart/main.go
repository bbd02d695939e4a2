// Command quickstart delivers the same event three times to a handler whose work happens once.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5/pgxpool"

	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
	"github.com/watermill-once/watermill-once/outbox"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	server := must(pgserver.Start(ctx, pgserver.Config{})) // or a database of your own
	defer server.Close()
	pool := must(pgxpool.New(ctx, server.URL("postgres")))
	defer pool.Close()
	must(0, once.InitializeSchema(ctx, once.Pgx(pool)))
	must(pool.Exec(ctx, `create table payments (id bigserial, card text, amount bigint)`))

	broker := gochannel.NewGoChannel(gochannel.Config{}, nil) // or Kafka, or any other of Watermill's
	publisher := must(outbox.NewPublisher(outbox.Config{}))
	relay := must(outbox.NewRelay(pool, broker, outbox.RelayConfig{Wake: publisher}, nil))
	transactional := must(once.Transactional(once.Pgx(pool), once.Config{Outbox: publisher}))

	router := must(message.NewRouter(message.RouterConfig{}, nil))
	router.AddMiddleware(transactional)
	router.AddHandler("payments", "paid", broker, "receipts", publisher, func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := once.PgxTx(msg.Context()) // one transaction: the event's claim, this write, the receipt
		_, err := tx.Exec(msg.Context(), `insert into payments (card, amount) values ('card-1', 1250)`)
		return []*message.Message{message.NewMessage("receipt-of-"+msg.UUID, msg.Payload)}, err
	})
	receipts := must(broker.Subscribe(ctx, "receipts"))
	go func() { must(0, relay.Run(ctx)) }()
	go func() { must(0, router.Run(ctx)) }()
	<-router.Running()

	for range 3 { // brokers do this by themselves, sooner or later
		must(0, broker.Publish("paid", message.NewMessage("event-1", []byte(`{"amount": 1250}`))))
	}
	must(0, broker.Publish("paid", message.NewMessage("event-2", []byte(`{"amount": 1250}`))))
	for range 2 {
		receipt := <-receipts
		fmt.Println("received", receipt.UUID)
		receipt.Ack()
	}
	must(0, router.Close()) // waits for the handlers
	var payments int
	must(0, pool.QueryRow(ctx, `select count(*) from payments`).Scan(&payments))
	fmt.Println("4 deliveries of 2 events,", payments, "payments")
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
