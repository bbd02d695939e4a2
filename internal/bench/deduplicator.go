package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

// deduplicator measures what dropping a duplicate costs, beside Watermill's Deduplicator: from the table, and from the cache of
// committed ids.
func deduplicator(ctx context.Context, s settings) error {
	server, err := pgserver.Start(ctx, pgserver.Config{})
	if err != nil {
		return err
	}
	defer server.Close()
	pool, err := pgxpool.New(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := once.InitializeSchema(ctx, once.Pgx(pool)); err != nil {
		return err
	}
	const known = 1000
	src := &source{}
	repeat := func() *message.Message { return src.event(src.last.Add(1) % known) }
	nothing := func(*message.Message) ([]*message.Message, error) { return nil, nil }

	handle := func(mw message.HandlerMiddleware) (func(context.Context) error, error) {
		h := mw(nothing)
		for n := range int64(known) {
			if _, err := h(src.event(n)); err != nil {
				return nil, err
			}
		}
		return func(context.Context) error {
			_, err := h(repeat())
			return err
		}, nil
	}
	var ways []way
	expiring, err := wmiddleware.NewMapExpiringKeyRepository(time.Hour)
	if err != nil {
		return err
	}
	stock := &wmiddleware.Deduplicator{KeyFactory: wmiddleware.NewMessageHasherSHA256(wmiddleware.MessageHasherReadLimitMinimum), Repository: expiring}
	for _, w := range []struct {
		name   string
		cache  int
		ofThem message.HandlerMiddleware
	}{
		{"Watermill's Deduplicator", 0, stock.Middleware},
		{"the cache", 2 * known, nil},
		{"the table", 0, nil},
	} {
		mw := w.ofThem
		if mw == nil {
			mw, err = once.Transactional(once.Pgx(pool), once.Config{Consumer: w.name, Dedupe: dedupe.Config{Cache: w.cache, CacheTTL: time.Hour}})
			if err != nil {
				return err
			}
		}
		do, err := handle(mw)
		if err != nil {
			return err
		}
		ways = append(ways, way{w.name, do})
	}
	f, err := takeTurns(ctx, s, 1, ways)
	if err != nil {
		return err
	}
	for i, w := range ways {
		fmt.Printf("drop a duplicate by %s: %.2f us, %.2fx of Watermill's Deduplicator's pace\n", w.name, 1e6/median(f[i].rates), ratio(f[i], f[0]))
	}
	return nil
}
