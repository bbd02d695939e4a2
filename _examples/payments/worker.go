package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

// workerEnv holds the worker's name in the environment of a worker.
const workerEnv = "PAYMENTS_WORKER"

func isWorker() bool { return os.Getenv(workerEnv) != "" }

// workerMain is the main function of a worker, and does not return.
func workerMain() {
	signal.Ignore(os.Interrupt) // Ctrl-C at the terminal reaches all: the parent ends its workers in its turn
	name := os.Getenv(workerEnv)
	if err := work(context.Background(), name, os.Stdin); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// work does what its input says until that ends.
func work(ctx context.Context, name string, input io.Reader) (err error) {
	var s settings
	if err := json.NewDecoder(input).Decode(&s); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, input)
		stop()
		time.Sleep(patience) // without a parent there may be no database, and nobody to kill a worker that hangs on it
		os.Exit(1)
	}()
	svc, err := openService(ctx, s, name)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // it ended while this was starting
	case err != nil:
		return err
	}
	return errors.Join(svc.run(ctx), svc.close())
}
