package dedupe_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

// A worker that charges a card, in the handler of a message that a transactional handler has published.
func ExampleDo() {
	ctx, pool, stop := exampleDatabase()
	defer stop()

	effects, err := dedupe.NewEffects(pool, dedupe.EffectsConfig{}) // the provider honours idempotency keys
	if err != nil {
		panic(err)
	}
	type order struct {
		Card   string
		Amount int
	}
	type charge struct{ ID string }

	handle := func(key string, o order) { // key: once.IdempotencyKeyFor("charger", msg.UUID, "charge")
		receipt, err := dedupe.Do(ctx, effects, key, o, func(ctx context.Context, idempotencyKey string) (charge, error) {
			fmt.Println("call the provider for", o.Amount)
			if o.Card == "expired" {
				return charge{}, dedupe.Final(errors.New("the card was declined"))
			}
			return charge{"ch_1"}, nil
		})
		fmt.Println(receipt.ID, err)
	}
	handle("order-1", order{"visa", 100})
	handle("order-1", order{"visa", 100}) // a redelivery
	handle("order-1", order{"visa", 999}) // a bug
	handle("order-2", order{"expired", 100})
	handle("order-2", order{"expired", 100})
	// Output:
	// call the provider for 100
	// ch_1 <nil>
	// ch_1 <nil>
	//  dedupe: the same key with other content
	// call the provider for 100
	//  the card was declined
	//  the card was declined
}

// The provider knows no idempotency keys: after a timeout a person finds out.
func ExampleEffects_Resolve() {
	ctx, pool, stop := exampleDatabase()
	defer stop()

	effects, err := dedupe.NewEffects(pool, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse})
	if err != nil {
		panic(err)
	}
	send := func() {
		id, err := dedupe.Do(ctx, effects, "mail-1", nil, func(context.Context, string) (string, error) {
			fmt.Println("send the mail")
			return "", errors.New("timeout")
		})
		fmt.Printf("%q %v\n", id, err)
	}
	send()
	send() // permanent: the message goes to the poison queue

	unknown, err := effects.List(ctx, dedupe.Unknown, 10)
	if err != nil {
		panic(err)
	}
	for _, u := range unknown {
		fmt.Println(u.Key, u.State, u.Attempts, u.LastError)
	}
	// Somebody looks into the mail server's log, and finds it.
	if err := effects.Resolve(ctx, "mail-1", "id-1@mx"); err != nil {
		panic(err)
	}
	send() // replayed from the poison queue
	// Output:
	// send the mail
	// "" timeout
	// "" dedupe: it is unknown whether the call took effect
	// mail-1 unknown 1 timeout
	// "id-1@mx" <nil>
}

// exampleDatabase is a server of the examples' own.
func exampleDatabase() (context.Context, *pgxpool.Pool, func()) {
	ctx := context.Background()
	server, err := pgserver.Start(ctx, pgserver.Config{BinDir: os.Getenv("PGBIN")})
	if err != nil {
		panic(err)
	}
	pool, err := pgxpool.New(ctx, server.URL("postgres"))
	if err != nil {
		panic(err)
	}
	if _, err := pool.Exec(ctx, dedupe.EffectsConfig{}.Schema()); err != nil { // or once.InitializeSchema
		panic(err)
	}
	return ctx, pool, func() {
		pool.Close()
		if err := server.Close(); err != nil {
			panic(err)
		}
	}
}
