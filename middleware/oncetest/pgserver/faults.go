package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// The signals that end a server, as its manual has them.
const (
	signalStop  = syscall.SIGINT  // fast: takes leave of its clients, writes a checkpoint
	signalAbort = syscall.SIGQUIT // immediate: as after a crash of one of its processes
	signalKill  = syscall.SIGKILL
)

// Stop ends the server in order, as an administrator does: open transactions are rolled back and clients get an error (SQLSTATE
// 57P01). Restart starts it again.
func (s *Server) Stop() error { return s.fault("stop", signalStop) }

// Abort ends the server at once and without a checkpoint, which PostgreSQL calls an immediate shutdown: connections break, with no
// more than a warning, and the next start recovers from the log.
func (s *Server) Abort() error { return s.fault("abort", signalAbort) }

// Kill ends the server by kill -9: connections break without a word.
func (s *Server) Kill() error { return s.fault("kill", signalKill) }

// Restart starts the server again, after stopping it where it runs, on the same data and the same addresses.
func (s *Server) Restart(ctx context.Context) error {
	if s.closed {
		return errors.New("pgserver: restart: the server is closed")
	}
	if err := s.fault("stop", signalStop); err != nil {
		return err
	}
	if err := s.run(ctx); err != nil {
		return fmt.Errorf("pgserver: restart: %w", err)
	}
	return nil
}

func (s *Server) fault(name string, signal os.Signal) error {
	if err := s.end(signal); err != nil {
		return fmt.Errorf("pgserver: %s: %w", name, err)
	}
	return nil
}
