package main

import (
	"context"
	"fmt"
	"net/url"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// broker is all that the program knows of one. Nothing outside the files broker*.go depends on which it is.
type broker struct {
	publisher message.Publisher // has the message safe when Publish returns nil

	// subscriber reads a topic for a group: each group gets every message.
	subscriber func(group string) (message.Subscriber, error)

	// create makes topics before anybody uses them. Nil where that is not needed.
	create func(topics ...string) error

	close func() error
}

// openBroker chooses by the URL's scheme. own is the database that a postgres:// without a host means.
func openBroker(ctx context.Context, address string, own *database, logger watermill.LoggerAdapter) (*broker, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	switch u.Scheme {
	case "postgres", "postgresql":
		if u.Host == "" && u.RawQuery == "" {
			return postgresBroker(own, func() error { return nil }, logger)
		}
		db, err := openDatabase(ctx, address)
		if err != nil {
			return nil, err
		}
		return postgresBroker(db, db.close, logger)
	case "kafka":
		if u.Host == "embedded" {
			return embeddedKafkaBroker(logger)
		}
		return kafkaBroker(u.Host, logger)
	case "gochannel":
		return goChannelBroker(logger), nil
	}
	return nil, fmt.Errorf("broker: unknown scheme %q: use postgres://, kafka:// or gochannel://", u.Scheme)
}
