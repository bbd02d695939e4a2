package middleware

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/internal/attempt"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

// schemaLock is the advisory lock around the DDL: PostgreSQL's "if not exists" does not stand two sessions that
// create the same table at the same time. The number is the ASCII of "wm once".
const schemaLock = 0x776d206f6e6365

// InitializeSchema creates the tables of what is named, with what is missing in them, in one transaction: of a Config, a
// LeasedConfig, a dedupe.Config, dedupe.EffectsConfig, ordering.Config or *outbox.Publisher. Where none is named, all tables under
// their default names. Any number of processes may call it at the same time. Where everything is there it changes nothing and waits
// for no writer.
//
// The same statements are in the packages' schema.sql files, and in dedupe/effects_schema.sql, to be copied into migrations.
func InitializeSchema(ctx context.Context, db DB, of ...interface{ Schema() string }) error {
	if len(of) == 0 {
		publisher, err := outbox.NewPublisher(outbox.Config{})
		if err != nil {
			return err
		}
		of = []interface{ Schema() string }{dedupe.Config{}, dedupe.EffectsConfig{}, ordering.Config{}, publisher}
	}
	faults := []error{validateDB(db)}
	for _, o := range of {
		if p, ok := o.(*outbox.Publisher); o == nil || ok && p == nil {
			faults = append(faults, errors.New("one of what is named is nil"))
			continue
		}
		if checked, ok := o.(interface{ Validate() error }); ok {
			faults = append(faults, checked.Validate())
		}
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("middleware: initialize schema: %w", err)
	}

	err := db.use(ctx, func(s session) error {
		defer s.rollback(ctx) // which a COMMIT leaves nothing of
		if _, err := s.begin(ctx, []attempt.Statement{prelude(schemaLockTimeout)}); err != nil {
			return err
		}
		if err := s.script(ctx, fmt.Sprintf("select pg_advisory_xact_lock(%d)", int64(schemaLock))); err != nil {
			return err
		}
		for _, o := range of {
			if err := s.script(ctx, o.Schema()); err != nil {
				return err
			}
		}
		_, err := s.commit(ctx, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("middleware: initialize schema: %w", err)
	}
	return nil
}

// schemaLockTimeout bounds the wait for other processes that boot, and for writers where something is missing.
const schemaLockTimeout = time.Minute

// Schema gives the statements for the tables that c uses.
func (c Config) Schema() string {
	var scripts []string
	if !c.Dedupe.Disabled {
		scripts = append(scripts, c.Dedupe.Schema())
	}
	if c.Ordering.Position != nil {
		scripts = append(scripts, c.Ordering.Schema())
	}
	if c.Outbox != nil {
		scripts = append(scripts, c.Outbox.Schema())
	}
	return strings.Join(scripts, "\n")
}
