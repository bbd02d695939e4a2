package pgserver

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// NewDatabase makes a database and gives its name, for URL. It is a copy of template, which nobody may be connected to
// meanwhile, or empty where template is "".
func (s *Server) NewDatabase(ctx context.Context, template string) (string, error) {
	if template == "" {
		template = "template0"
	}
	// One at a time: two copies of one template would be in each other's way.
	s.databases.Lock()
	defer s.databases.Unlock()
	s.databases.made++
	name := fmt.Sprintf("db%d", s.databases.made)
	query := "create database " + name + " template " + pgx.Identifier{template}.Sanitize()
	if s.version.major >= 15 && !s.config.Fsync {
		query += " strategy file_copy" // several times as fast as the default where nothing is flushed to disk
	}
	if err := s.exec(ctx, query); err != nil {
		return "", fmt.Errorf("pgserver: new database: %w", err)
	}
	return name, nil
}

// DropDatabase removes a database, and ends the connections to it.
func (s *Server) DropDatabase(ctx context.Context, name string) error {
	if err := s.exec(ctx, "drop database "+pgx.Identifier{name}.Sanitize()+" with (force)"); err != nil {
		return fmt.Errorf("pgserver: drop database: %w", err)
	}
	return nil
}

func (s *Server) exec(ctx context.Context, query string) error {
	conn, err := pgx.Connect(ctx, s.SocketURL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, query)
	return err
}
