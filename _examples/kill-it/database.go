package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

// ownDatabase as the broker's URL means the database that the service writes to.
const ownDatabase = "postgres://"

// database is a schema of this run's own on a PostgreSQL server: what else is there stays as it is.
type database struct {
	url    string // secret; leads to the schema
	schema string
	made   bool // the schema is there
	pool   *pgxpool.Pool
	server *pgserver.Server // nil where it is not ours to stop
}

// openDatabase uses the server at address, or starts one where that is empty, and makes the tables.
func openDatabase(ctx context.Context, address string) (_ *database, err error) {
	d := &database{schema: "killit_" + strings.ToLower(rand.Text()[:8])}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if address == "" {
		if d.server, err = pgserver.Start(ctx, pgserver.Config{}); err != nil {
			return nil, err
		}
		address = d.server.URL("postgres")
	}
	u, err := url.Parse(address)
	if err != nil || !strings.HasPrefix(address, "postgres://") && !strings.HasPrefix(address, "postgresql://") {
		// Without its text, which may hold a password. What has another scheme pgx would take for no URL, and connect to a default.
		return nil, errors.New("DATABASE_URL is no URL of PostgreSQL: postgres://user:password@host/database")
	}
	query := u.Query()
	query.Set("search_path", d.schema)
	u.RawQuery = query.Encode()
	d.url = u.String()
	if d.pool, err = pgxpool.New(ctx, d.url); err != nil {
		return nil, err
	}
	if _, err = d.pool.Exec(ctx, "create schema "+d.schema); err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	d.made = true
	if err = once.InitializeSchema(ctx, once.Pgx(d.pool)); err != nil {
		return nil, err
	}
	if _, err = d.pool.Exec(ctx, tables); err != nil {
		return nil, fmt.Errorf("tables: %w", err)
	}
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
