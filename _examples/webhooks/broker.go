package main

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/watermill-once/_examples/broker"
)

// ownDatabase as the broker's URL means the database that the consumers write to.
const ownDatabase = "postgres://"

// openBroker opens the broker at address. One on PostgreSQL gets a schema of this run's own, which goes at its end.
func openBroker(ctx context.Context, address string, own *database, logger watermill.LoggerAdapter) (*broker.Broker, func() error, error) {
	closeDatabase := func() error { return nil }
	if strings.HasPrefix(address, "postgres") {
		db := own
		if address != ownDatabase {
			var err error
			if db, err = openDatabase(ctx, "-broker", address); err != nil {
				return nil, nil, err
			}
			closeDatabase = db.close
		}
		var err error
		if address, err = db.urlWithSchema(); err != nil {
			return nil, nil, errors.Join(err, closeDatabase())
		}
	}
	b, err := broker.Open(ctx, address, logger)
	if err != nil {
		return nil, nil, errors.Join(err, closeDatabase())
	}
	return b, func() error { return errors.Join(b.Close(), closeDatabase()) }, nil
}

func (d *database) urlWithSchema() (string, error) {
	u, err := url.Parse(d.url)
	if err != nil || u.Scheme == "" {
		return "", errors.New("DATABASE_URL is no URL, as it must be where it is the broker too")
	}
	query := u.Query()
	query.Set("search_path", d.schema)
	u.RawQuery = query.Encode()
	return u.String(), nil
}
