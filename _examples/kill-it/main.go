// Kill-it runs a service in a process of its own, kills that at every point where it hurts, starts it again, and adds up.
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
	if serveAsChild() {
		return
	}
	var c config
	address := broker.Flag(flag.CommandLine, ownDatabase)
	flag.IntVar(&c.events, "events", 20, "how many events to send in each round")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unknown argument %q\n", flag.Arg(0))
		flag.Usage()
		os.Exit(2)
	}
	c.broker, c.database = *address, os.Getenv("DATABASE_URL")

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

// logger shows errors alone: what the killed leave behind, and their successors find, is worth no line.
func logger() watermill.LoggerAdapter {
	return watermill.NewSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
}
