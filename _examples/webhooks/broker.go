package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

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

// parseBroker finds faults in a broker's URL before anything is started.
func parseBroker(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("broker: not a URL") // without its text, which may hold a password
	}
	switch u.Scheme {
	case "postgres", "postgresql", "gochannel":
		return u, nil
	case "kafka":
		for host := range strings.SplitSeq(u.Host, ",") {
			if name, port, err := net.SplitHostPort(host); u.Host != "embedded" && (err != nil || name == "" || port == "") {
				return nil, fmt.Errorf("broker: kafka:// needs host:port, or several with commas between, or embedded; not %q", host)
			}
		}
		return u, nil
	}
	return nil, fmt.Errorf("broker: unknown scheme %q: use postgres://, kafka:// or gochannel://", u.Scheme)
}

// openBroker chooses by the URL's scheme. own is the database that a postgres:// without a host means.
func openBroker(ctx context.Context, u *url.URL, own *database, logger watermill.LoggerAdapter) (*broker, error) {
	switch u.Scheme {
	case "kafka":
		if u.Host == "embedded" {
			return embeddedKafkaBroker(logger)
		}
		return kafkaBroker(u.Host, logger)
	case "gochannel":
		return goChannelBroker(logger), nil
	default:
		if u.Host == "" && u.Path == "" && u.RawQuery == "" {
			return postgresBroker(own, func() error { return nil }, logger)
		}
		db, err := openDatabase(ctx, u.String())
		if err != nil {
			return nil, err
		}
		return postgresBroker(db, db.close, logger)
	}
}
