package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// endpoints are two URLs of one service, as where an account is registered with the provider twice.
func (s *service) endpoints(secrets [][]byte) *http.ServeMux {
	mux := http.NewServeMux()
	for i, topic := range s.topics.incoming {
		mux.Handle("POST "+endpointPath(i), s.faults.refuseSome(endpoint{
			topic:     topic,
			source:    s.source,
			publisher: s.broker.Publisher,
			secrets:   secrets,
			logger:    s.logger,
		}))
	}
	return mux
}

func endpointPath(i int) string { return fmt.Sprintf("/webhooks/%d", i+1) }

// shutdown is how long what has begun may take when the program ends.
const shutdown = 10 * time.Second

// serve answers until the context ends, and then finishes what it has begun.
func serve(ctx context.Context, server *http.Server, listener net.Listener) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdown)
	defer cancel()
	err := server.Shutdown(last)
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
