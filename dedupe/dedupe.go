package dedupe

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/internal/keytext"
	"github.com/watermill-once/watermill-once/internal/misuse"
	"github.com/watermill-once/watermill-once/internal/sqlname"
)

const defaultTable = "watermill_processed_events"

// Config says what makes two messages the same event, and where that is remembered. The zero value works.
type Config struct {
	// Key finds the event id of a message. It is asked before anything is begun, and must depend on the message
	// alone, for its errors are taken as final. Defaults to MessageUUID.
	Key KeyFunc

	// Table is the table of claims, as a name or as schema.name, each part taken as it stands (quoted).
	// Defaults to "watermill_processed_events".
	Table string

	// Cache is how many committed event ids a process remembers, over all consumers, so that a duplicate that follows
	// soon costs no trip to the database. Worth its memory (some 200 bytes an entry) where duplicates come in bursts.
	// Defaults to 0: none.
	Cache int

	// CacheTTL is how long an entry of Cache lives at most: for so long may a process still take for a duplicate what
	// has been deleted from the table.
	// Defaults to one minute.
	CacheTTL time.Duration

	// Fingerprint tells apart two events that a producer has given the same id: the claim keeps the SHA-256 of the
	// payload, and a message with that id and another payload is refused with ErrFingerprintMismatch, a permanent error. Leave it
	// off where a redelivery may be encoded anew. Claims made while it was off match any payload. A duplicate then writes to
	// its claim's page.
	Fingerprint bool

	// Disabled leaves the claims out, for handlers that are idempotent by themselves. A message may then have no event
	// id, but not a malformed one.
	Disabled bool
}

// Validate tells everything that is wrong with the Config.
func (c Config) Validate() error {
	var faults []error
	if _, err := c.table(); err != nil {
		faults = append(faults, err)
	}
	if c.Cache < 0 {
		faults = append(faults, fmt.Errorf("dedupe: Cache: %d is negative", c.Cache))
	}
	if c.CacheTTL < 0 {
		faults = append(faults, fmt.Errorf("dedupe: CacheTTL: %s is negative", c.CacheTTL))
	}
	if c.Fingerprint && c.Disabled {
		faults = append(faults, errors.New("dedupe: Fingerprint: there is no claim to keep it while Disabled"))
	}
	return errors.Join(faults...)
}

// EventID finds the event id of a message and checks it: 1 to 512 bytes of valid UTF-8 without NUL. Its errors wrap
// ErrInvalidKey, whatever Key returned, but for a Key that is itself at fault (see JSONField).
func (c Config) EventID(msg *message.Message) (string, error) {
	key := c.Key
	if key == nil {
		key = MessageUUID
	}
	id, err := key(msg)
	if err != nil {
		if errors.Is(err, ErrInvalidKey) || errors.Is(err, misuse.Err) {
			return "", err
		}
		return "", &keyError{ErrInvalidKey, msg.UUID, "Key", err}
	}
	return check(id, msg, "Key")
}

// Digest is what Fingerprint keeps of a message: the SHA-256 of its payload. Nil where Fingerprint is off.
func (c Config) Digest(msg *message.Message) []byte {
	if !c.Fingerprint {
		return nil
	}
	sum := sha256.Sum256(msg.Payload)
	return sum[:]
}

// QuotedTable is Table, or its default, quoted for use in SQL. A Config that Validate refuses gives a name that
// PostgreSQL refuses.
func (c Config) QuotedTable() string {
	table, err := c.table()
	if err != nil {
		return `""`
	}
	return table
}

// table gives the name quoted.
func (c Config) table() (string, error) {
	quoted, err := sqlname.Table(cmp.Or(c.Table, defaultTable))
	if err != nil {
		return "", fmt.Errorf("dedupe: Table: %w", err)
	}
	return quoted, nil
}

func check(id string, msg *message.Message, field string) (string, error) {
	switch err := keytext.Check(id); {
	case err == nil:
		return id, nil
	case errors.Is(err, keytext.ErrEmpty):
		return "", &keyError{ErrMissingKey, msg.UUID, field, err}
	default:
		return "", &keyError{ErrInvalidKey, msg.UUID, field, err}
	}
}
