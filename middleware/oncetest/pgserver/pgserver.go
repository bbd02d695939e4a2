package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/watermill-once/watermill-once/internal/child"
)

// Server is a PostgreSQL server with data of its own. Its methods may be called from several goroutines, except that only
// one at a time may stop or start it.
type Server struct {
	config   Config
	account  *child.Account
	binDir   string
	version  version
	dir      string // holds the data, and the socket
	port     int
	password string
	log      *child.Tail
	guard    *child.Guard
	process  *child.Process // nil after Stop, Abort or Kill
	closed   bool

	databases struct {
		sync.Mutex
		made int
	}
}

// Start makes a server and waits until it takes connections: a tenth of a second, and a second or two where initdb has to
// run first. ctx ends the wait, not the server: that is for Close.
func Start(ctx context.Context, config Config) (*Server, error) {
	s, err := start(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	return s, nil
}

func start(ctx context.Context, config Config) (_ *Server, err error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	s := &Server{config: config, log: child.NewTail(config.Log)}
	if s.account, err = child.FindAccount(config.accounts()...); err != nil {
		return nil, err
	}
	if s.binDir, err = findBinDir(ctx, config); err != nil {
		return nil, err
	}
	if s.version, err = readVersion(ctx, s.binDir); err != nil {
		return nil, err
	}
	if s.dir, err = s.makeDir(ctx); err != nil {
		return nil, err
	}
	if s.guard, err = child.NewGuard(s.dir, freeSharedMemory); err != nil {
		return nil, errors.Join(err, os.Remove(s.dir))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.initData(ctx); err != nil {
		return nil, err
	}
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	return s, s.setPassword(ctx)
}

// URL is where a database is to be reached over TCP; the database postgres is always there.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     s.Addr(),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// SocketURL is where a database is to be reached over the unix socket, by the server's account and by root.
func (s *Server) SocketURL(database string) string {
	u := url.URL{Scheme: "postgres", Path: "/" + database, RawQuery: url.Values{
		"host": {s.dir}, "port": {strconv.Itoa(s.port)}, "user": {superuser},
	}.Encode()}
	return u.String()
}

// Addr is the server's TCP address, for a proxy in front of it. It stays the same over Restart.
func (s *Server) Addr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// Close ends the server, whatever state it is in, and removes its data. Closing again does nothing.
func (s *Server) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	if err := errors.Join(s.end(signalAbort), s.guard.Close()); err != nil {
		return fmt.Errorf("pgserver: close: %w", err)
	}
	return nil
}

// freeSharedMemory is shell for the guard. A server that was killed has left a small segment of System V shared memory, whose id
// ends the seventh line of its pid file; one that ended in order has taken both away.
const freeSharedMemory = `
id=$(sed -n '7s/.* //p' data/postmaster.pid 2>/dev/null) && ipcrm -m "$id" 2>/dev/null
`

func (s *Server) dataDir() string { return filepath.Join(s.dir, "data") }
