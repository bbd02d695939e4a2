// Webhooks takes a provider's webhook deliveries, which come late, twice and out of order, and applies each event once.
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
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/watermill-once/_examples/broker"
)

func main() {
	var c config
	address := broker.Flag(flag.CommandLine, ownDatabase)
	flag.StringVar(&c.input, "input", "", "`FILE` of recorded deliveries to send, one JSON object a line, instead of made ones")
	flag.IntVar(&c.events, "events", 2000, "how many events to make")
	flag.Uint64Var(&c.seed, "seed", 1, "of the events and of what happens to them")
	flag.StringVar(&c.serve, "serve", "",
		"`ADDRESS`, as 127.0.0.1:8080, at which to show the provider's console until interrupted, in place of the proof")
	flag.DurationVar(&c.pace, "pace", 2*time.Second, "of the deliveries that the console shows")
	verbose := flag.Bool("v", false, "log what Watermill does")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unknown argument %q\n", flag.Arg(0))
		flag.Usage()
		os.Exit(2)
	}
	c.broker, c.database = *address, os.Getenv("DATABASE_URL")
	level := slog.LevelError
	if *verbose {
		level = slog.LevelInfo
	}
	c.logger = watermill.NewSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))

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
