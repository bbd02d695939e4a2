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

// database is a schema of this run's own on a PostgreSQL server: what else is there stays as it is.
type database struct {
	url    string // secret
	pool   *pgxpool.Pool
	schema string
	made   bool             // the schema is there
	server *pgserver.Server // nil where it is not ours to stop
}

// openDatabase uses the server at url, which the setting of that name holds, or starts one where url is empty.
func openDatabase(ctx context.Context, setting, url string) (_ *database, err error) {
	d := &database{schema: "webhooks_" + strings.ToLower(rand.Text()[:8])}
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
	d.url = url
	if scheme, _, found := strings.Cut(url, "://"); found && scheme != "postgres" && scheme != "postgresql" && !strings.Contains(scheme, "=") {
		// Without its text, which may hold a password. pgx would take it for no URL, and connect to a default.
		return nil, fmt.Errorf("%s is no URL of PostgreSQL: postgres://user:password@host/database", setting)
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	config.ConnConfig.RuntimeParams["search_path"] = d.schema
	config.MaxConns = 20 // each handler that runs holds one
	if d.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if _, err = d.pool.Exec(ctx, "create schema "+d.schema); err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	d.made = true
	return d, nil
}

// close removes what the run has made.
func (d *database) close() error {
	var faults []error
	if d.pool != nil {
		if d.made && d.server == nil {
			_, err := d.pool.Exec(context.Background(), "drop schema if exists "+d.schema+" cascade")
			faults = append(faults, err)
		}
		d.pool.Close()
	}
	if d.server != nil {
		faults = append(faults, d.server.Close())
	}
	return errors.Join(faults...)
}
