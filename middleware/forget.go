package middleware

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Forgotten is what Config.Forget has found of the events that it was given.
type Forgotten struct {
	Claims   int64 // events that were claimed
	Versions int64 // entities whose last event was among them
}

// Forget makes a consumer handle events once more when they are delivered again, as after a bug was fixed: in tx it deletes their
// claims, and where there is Ordering it lets the last event of each entity pass the guard again. An older event of an entity
// stays stale, since what came after it is applied already. Unknown ids are no error.
//
// consumer may be "" where c.Consumer is set. tx must be READ COMMITTED; any transaction of the database will do. An event that is
// being handled at the moment is waited for, and deliveries that come before tx ends wait for it. Forget brings no delivery: publish
// the event again, or set the consumer group back. Processes with dedupe.Config.Cache take the event for a duplicate for CacheTTL.
//
// What the first run did is not undone. The handler's second run should mend it: set state from the event, upsert by a stable key.
// Messages that it produces go out again: DeriveUUID gives them the UUIDs of the first run.
func (c Config) Forget(ctx context.Context, tx pgx.Tx, consumer string, eventIDs ...string) (Forgotten, error) {
	consumer, err := c.forgetOf(consumer)
	if err != nil {
		return Forgotten{}, err
	}
	// In the order in which a handler takes the two locks: so they cannot wait for each other.
	var forgotten Forgotten
	if !c.Dedupe.Disabled {
		if forgotten.Claims, err = c.Dedupe.Forget(ctx, tx, consumer, eventIDs...); err != nil {
			return Forgotten{}, fmt.Errorf("middleware: %w", err)
		}
	}
	if c.Ordering.Position != nil {
		if forgotten.Versions, err = c.Ordering.Forget(ctx, tx, consumer, eventIDs...); err != nil {
			return Forgotten{}, fmt.Errorf("middleware: %w", err)
		}
	}
	return forgotten, nil
}

// ForgetSQLTx is Forget for database/sql.
func (c Config) ForgetSQLTx(ctx context.Context, tx *sql.Tx, consumer string, eventIDs ...string) (Forgotten, error) {
	consumer, err := c.forgetOf(consumer)
	if err != nil {
		return Forgotten{}, err
	}
	var forgotten Forgotten
	if !c.Dedupe.Disabled {
		if forgotten.Claims, err = c.Dedupe.ForgetSQLTx(ctx, tx, consumer, eventIDs...); err != nil {
			return Forgotten{}, fmt.Errorf("middleware: %w", err)
		}
	}
	if c.Ordering.Position != nil {
		if forgotten.Versions, err = c.Ordering.ForgetSQLTx(ctx, tx, consumer, eventIDs...); err != nil {
			return Forgotten{}, fmt.Errorf("middleware: %w", err)
		}
	}
	return forgotten, nil
}

// forgetOf gives the consumer that is meant. A Config of one consumer cannot forget for another.
func (c Config) forgetOf(consumer string) (string, error) {
	switch {
	case cmp.Or(consumer, c.Consumer) == "":
		return "", fmt.Errorf("middleware: forget: %w", ErrNoConsumer)
	case consumer != "" && c.Consumer != "" && consumer != c.Consumer:
		return "", fmt.Errorf("middleware: forget: the consumer is %q, and Config.Consumer %q", consumer, c.Consumer)
	}
	return cmp.Or(consumer, c.Consumer), nil
}
