package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

// databases are one for each service: here two schemas of one server, with nothing in common.
type databases struct {
	run             string // its name
	orders, billing *pgxpool.Pool
	server          *pgserver.Server // nil where it is not ours to stop
}

// openDatabase uses the server at url, or starts one where url is empty.
func openDatabase(ctx context.Context, url string) (_ *databases, err error) {
	d := &databases{run: "orders_" + strings.ToLower(rand.Text()[:8])}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if url == "" {
		if d.server, err = pgserver.Start(ctx, pgserver.Config{}); err != nil {
			return nil, err
		}
		url = d.server.URL("postgres")
	}
	if d.orders, err = openSchema(ctx, url, d.run); err != nil {
		return nil, err
	}
	if d.billing, err = openSchema(ctx, url, d.run+"_billing"); err != nil {
		return nil, err
	}
	return d, nil
}

func openSchema(ctx context.Context, url, name string) (*pgxpool.Pool, error) {
	if scheme, _, found := strings.Cut(url, "://"); found && scheme != "postgres" && scheme != "postgresql" && !strings.Contains(scheme, "=") {
		// Without its text, which may hold a password. pgx would take it for no URL, and connect to a default.
		return nil, errors.New("DATABASE_URL is no URL of PostgreSQL: postgres://user:password@host/database")
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	config.ConnConfig.RuntimeParams["search_path"] = name
	config.MaxConns = 20 // each handler that runs holds one, and the relay two
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, "create schema "+name); err != nil {
		pool.Close()
		return nil, fmt.Errorf("database: %w", err)
	}
	return pool, nil
}

// close removes what the run has made.
func (d *databases) close() error {
	var faults []error
	for _, pool := range []*pgxpool.Pool{d.orders, d.billing} {
		if pool == nil {
			continue
		}
		if d.server == nil {
			_, err := pool.Exec(context.Background(), "drop schema if exists "+pool.Config().ConnConfig.RuntimeParams["search_path"]+" cascade")
			faults = append(faults, err)
		}
		pool.Close()
	}
	if d.server != nil {
		faults = append(faults, d.server.Close())
	}
	return errors.Join(faults...)
}
