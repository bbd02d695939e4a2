// Payments charges each order's card once, though the payment provider times out after it has charged, and though the processes
// that call it are killed in the middle.
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
	if isWorker() {
		workerMain()
	}
	var c config
	address := broker.Flag(flag.CommandLine, ownDatabase)
	flag.IntVar(&c.orders, "orders", 40, "how many orders to place, in each pass")
	flag.IntVar(&c.kills, "kills", 6, "how many times a worker is killed, in each pass")
	flag.Uint64Var(&c.seed, "seed", 1, "of the orders and of what goes wrong with them")
	flag.BoolVar(&c.verbose, "v", false, "log what Watermill does")
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

func newLogger(verbose bool) watermill.LoggerAdapter {
	if !verbose {
		// What goes wrong here does so on purpose, and is retried.
		return watermill.NopLogger{}
	}
	return watermill.NewSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, nil)))
}
