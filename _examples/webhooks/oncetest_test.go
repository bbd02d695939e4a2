package main

import (
	"math/rand/v2"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/middleware/oncetest"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

// The handler of cards by itself, without the provider and its bad days: replayed, at once, crashed, out of order, and without its
// claims.
func TestChangeCard(t *testing.T) {
	t.Parallel()
	events, err := makeEvents(3, rand.New(rand.NewPCG(1, 0))) // of one card
	require.NoError(t, err)
	msgs := make([]*message.Message, len(events))
	for i, e := range events {
		msgs[i] = message.NewMessage(e.id, e.body)
	}
	setup := func(t testing.TB, db oncetest.Database) message.HandlerFunc {
		publisher, err := outbox.NewPublisher(outbox.Config{})
		require.NoError(t, err)
		s := &service{pool: db.Pool, source: cardSource, outbox: publisher}
		require.NoError(t, once.InitializeSchema(t.Context(), once.Pgx(db.Pool)))
		_, err = db.Pool.Exec(t.Context(), tables)
		require.NoError(t, err)
		config := once.Config{Consumer: "cards", Ordering: ordering.Config{Position: cardSource.position}, Outbox: publisher}
		transactional, err := once.Transactional(once.Pgx(db.Pool), config)
		require.NoError(t, err)
		return transactional(s.changeCard)
	}
	oncetest.Config{Position: cardSource.position, MustSurviveAmnesia: true}.Prove(t, setup, msgs)
}
