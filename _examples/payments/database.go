package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

// schema is one pass's own on a PostgreSQL server: what else is there stays as it is.
type schema struct {
	name   string
	server string // URL; secret
	url    string // that of the server, with the schema; secret
}

func createSchema(ctx context.Context, server string) (*schema, error) {
	u, err := url.Parse(server)
	if err != nil || !strings.HasPrefix(server, "postgres://") && !strings.HasPrefix(server, "postgresql://") {
		// Without its text, which may hold a password. What has another scheme pgx would take for no URL, and connect to a default.
		return nil, errors.New("DATABASE_URL is no URL of PostgreSQL: postgres://user:password@host/database")
	}
	s := &schema{name: "payments_" + strings.ToLower(rand.Text()[:8]), server: server}
	query := u.Query()
	query.Set("search_path", s.name)
	u.RawQuery = query.Encode()
	s.url = u.String()
	return s, s.exec(ctx, "create schema "+s.name)
}

func (s *schema) drop() error {
	return s.exec(context.Background(), "drop schema if exists "+s.name+" cascade")
}

func (s *schema) exec(ctx context.Context, query string) error {
	conn, err := pgx.Connect(ctx, s.server)
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, query); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	return nil
}
