package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/watermill-once/watermill-once/internal/tcpproxy"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

const ledger = `create table ledger (id bigserial primary key, event_id text not null, card text not null, amount bigint not null)`

// transactional measures Transactional against the loop that does the same by hand.
func transactional(ctx context.Context, s settings) error {
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
	if _, err := pool.Exec(ctx, ledger); err != nil {
		return err
	}

	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "handler\tin flight\tlatency\tby hand sql/s\tpgx/s\tours/s\tours, SQL/s\tours : hand sql\tours : hand pgx\tours, SQL : hand sql\tallocs (hand sql, pgx; ours, SQL)\tbytes\t")
	src := &source{}
	for _, latency := range []time.Duration{0, 500 * time.Microsecond} {
		for _, inFlight := range []int{1, 16, 64} {
			for _, scenario := range []string{"own statement", "queue", "duplicate"} {
				if err := transactionalCell(ctx, s, table, server, src, scenario, inFlight, latency); err != nil {
					return err
				}
				// What the last cell has written must not slow the next one down.
				if _, err := pool.Exec(ctx, `truncate watermill_processed_events, watermill_entity_versions, watermill_outbox, ledger; checkpoint`); err != nil {
					return err
				}
			}
		}
	}
	return table.Flush()
}

func transactionalCell(ctx context.Context, s settings, table *tabwriter.Writer, server *pgserver.Server, src *source, scenario string, inFlight int, latency time.Duration) error {
	proxy, err := tcpproxy.Start(server.Addr())
	if err != nil {
		return err
	}
	defer proxy.Close()
	address := server.URL("postgres")
	if latency > 0 {
		if err := proxy.Latency(latency); err != nil {
			return err
		}
		if address, err = through(address, proxy.Addr()); err != nil {
			return err
		}
	}
	db, err := sql.Open("pgx", address)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(inFlight)
	db.SetMaxIdleConns(inFlight)
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return err
	}
	config.MaxConns = int32(inFlight)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()

	ways, err := waysOf(ctx, scenario, src, pool, db)
	if err != nil {
		return err
	}
	f, err := takeTurns(ctx, s, inFlight, ways)
	if err != nil {
		return fmt.Errorf("%s, %d in flight: %w", scenario, inFlight, err)
	}
	handSQL, handPgx, ours, oursSQL := f[0], f[1], f[2], f[3]
	fmt.Fprintf(table, "%s\t%d\t%v\t%.0f\t%.0f\t%.0f\t%.0f\t%.2fx\t%.2fx\t%.2fx\t%.0f, %.0f; %.0f, %.0f\t%.0f, %.0f; %.0f, %.0f\t\n",
		scenario, inFlight, latency,
		median(handSQL.rates), median(handPgx.rates), median(ours.rates), median(oursSQL.rates),
		ratio(ours, handSQL), ratio(ours, handPgx), ratio(oursSQL, handSQL),
		handSQL.allocs, handPgx.allocs, ours.allocs, oursSQL.allocs,
		handSQL.bytes, handPgx.bytes, ours.bytes, oursSQL.bytes)
	fmt.Fprintf(os.Stderr, "%s, %d in flight, +%v: %.2fx\n", scenario, inFlight, latency, ratio(ours, handSQL))
	return nil
}

// waysOf gives the loop by hand over database/sql and pgx, and the middleware over both.
func waysOf(ctx context.Context, scenario string, src *source, pool *pgxpool.Pool, db *sql.DB) ([]way, error) {
	publisher, err := outbox.NewPublisher(outbox.Config{})
	if err != nil {
		return nil, err
	}
	config := once.Config{
		Ordering: ordering.Config{Position: ordering.Metadata("entity", "version")},
		Outbox:   publisher,
	}
	if scenario == "duplicate" {
		config.Ordering = ordering.Config{}
	}
	publish := func(msg *message.Message) error {
		out := mail(msg.UUID, msg.Metadata["entity"])
		out.SetContext(msg.Context())
		return publisher.Publish("mails", out)
	}
	handler := map[string]message.HandlerFunc{
		"queue": func(msg *message.Message) ([]*message.Message, error) {
			if err := once.Queue(msg.Context(), writeSQL, msg.UUID, msg.Metadata["entity"], 1250); err != nil {
				return nil, err
			}
			return nil, publish(msg)
		},
		"own statement": func(msg *message.Message) ([]*message.Message, error) {
			ctx := msg.Context()
			if tx, ok := once.PgxTx(ctx); ok {
				if _, err := tx.Exec(ctx, writeSQL, msg.UUID, msg.Metadata["entity"], 1250); err != nil {
					return nil, err
				}
				return nil, publish(msg)
			}
			tx, _ := once.SQLTx(ctx)
			if _, err := tx.ExecContext(ctx, writeSQL, msg.UUID, msg.Metadata["entity"], 1250); err != nil {
				return nil, err
			}
			return nil, publish(msg)
		},
		"duplicate": func(msg *message.Message) ([]*message.Message, error) { return nil, nil },
	}[scenario]
	consume := func(consumer string, database once.DB) (message.HandlerFunc, error) {
		config := config
		config.Consumer = consumer
		mw, err := once.Transactional(database, config)
		if err != nil {
			return nil, err
		}
		return mw(handler), nil
	}
	overPgx, err := consume("ours", once.Pgx(pool))
	if err != nil {
		return nil, err
	}
	overSQL, err := consume("ours-sql", once.SQL(db))
	if err != nil {
		return nil, err
	}
	handle := func(h message.HandlerFunc, msg *message.Message) error {
		_, err := h(msg)
		return err
	}

	if scenario == "duplicate" {
		const known = 1000 // events, claimed beforehand by each consumer
		for n := range int64(known) {
			for _, consumer := range []string{"hand-sql", "hand-pgx", "ours", "ours-sql"} {
				if _, err := pool.Exec(ctx, claimSQL, consumer, src.event(n).UUID); err != nil {
					return nil, err
				}
			}
		}
		repeat := func() *message.Message { return src.event(src.last.Add(1) % known) }
		return []way{
			{"by hand, database/sql", func(ctx context.Context) error { return duplicateByHandSQL(ctx, db, "hand-sql", repeat()) }},
			{"by hand, pgxpool", func(ctx context.Context) error { return duplicateByHandPgx(ctx, pool, "hand-pgx", repeat()) }},
			{"Pgx", func(context.Context) error { return handle(overPgx, repeat()) }},
			{"SQL", func(context.Context) error { return handle(overSQL, repeat()) }},
		}, nil
	}
	return []way{
		{"by hand, database/sql", func(ctx context.Context) error { return byHandSQL(ctx, db, "hand-sql", src.next()) }},
		{"by hand, pgxpool", func(ctx context.Context) error { return byHandPgx(ctx, pool, "hand-pgx", src.next()) }},
		{"Pgx", func(context.Context) error { return handle(overPgx, src.next()) }},
		{"SQL", func(context.Context) error { return handle(overSQL, src.next()) }},
	}, nil
}
