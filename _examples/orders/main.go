// Orders keeps the state of orders from a feed that repeats and mixes up its events, and has a second service follow it.
//
// See README.md for what it shows and where to find it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/watermill-once/_examples/broker"
)

func main() {
	var c config
	address := broker.Flag(flag.CommandLine, "kafka://embedded")
	flag.IntVar(&c.events, "events", 600, "how many events to make")
	flag.Uint64Var(&c.seed, "seed", 1, "of the events and of what happens to them")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unknown argument %q\n", flag.Arg(0))
		flag.Usage()
		os.Exit(2)
	}
	c.broker, c.database = *address, os.Getenv("DATABASE_URL")
	c.logger = watermill.NewSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, c, os.Stdout)
	switch {
	case err == nil:
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "interrupted")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
