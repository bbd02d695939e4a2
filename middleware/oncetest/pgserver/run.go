package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/watermill-once/internal/child"
)

// patience is for what takes a server a second or two.
const patience = time.Minute

// run starts the server on its data and waits until it takes connections.
func (s *Server) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	first := s.port == 0
	for {
		if first {
			port, err := child.FreePort()
			if err != nil {
				return err
			}
			s.port = port
		}
		s.log.Reset()
		if err := s.spawn(); err != nil {
			return err
		}
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		err = errors.Join(err, s.end(signalAbort))
		log := s.log.String()
		switch {
		case first && strings.Contains(log, "could not create any TCP/IP sockets"):
			// Somebody was quicker to take the port.
		case strings.Contains(log, "is still in use"), strings.Contains(log, "Is another postmaster"):
			// The last backends of a killed server have yet to notice.
		default:
			return fmt.Errorf("the server did not start: %w\n%s", err, log)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server did not start: %w\n%s", ctx.Err(), log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Server) spawn() error {
	fsync := "off"
	if s.config.Fsync {
		fsync = "on"
	}
	args := []string{
		"-D", s.dataDir(), "-k", s.dir, "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "fsync=" + fsync,
	}
	for name, value := range s.config.Params {
		args = append(args, "-c", name+"="+value)
	}
	// Not by pg_ctl: it lets the server outlive whoever started it.
	p, err := s.account.Start(s.dir, s.log, filepath.Join(s.binDir, "postgres"), args...)
	if err != nil {
		return err
	}
	s.process = p
	return s.guard.Watch(p)
}

func (s *Server) ready(ctx context.Context) error {
	for {
		conn, err := pgx.Connect(ctx, s.SocketURL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.process.Done():
			return errors.New("its process ended")
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// end sends the signal and waits until the server is gone.
func (s *Server) end(signal os.Signal) error {
	if s.process == nil {
		return nil
	}
	err := s.process.End(signal, patience)
	s.process = nil
	return errors.Join(err, s.guard.Watch(nil))
}
