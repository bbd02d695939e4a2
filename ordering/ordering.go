package ordering

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/internal/misuse"
	"github.com/watermill-once/watermill-once/internal/sqlname"
)

const defaultTable = "watermill_entity_versions"

// Policy says what becomes of an event that is not beyond the last one applied.
type Policy int

// DropStale does not apply it, and counts it as handled.
const DropStale Policy = 0

// Config says where in its entity's history an event belongs, and what follows. The zero value checks nothing.
type Config struct {
	// Position finds the entity and the version of a message. It is asked before anything is begun, and must depend
	// on the message alone, for its errors are taken as final. Defaults to nil: no version check.
	Position PositionFunc

	// Policy says what becomes of a stale event.
	// Defaults to DropStale.
	Policy Policy

	// Table is the table of entities, as a name or as schema.name, each part taken as it stands (quoted).
	// Defaults to "watermill_entity_versions".
	Table string
}

// Validate tells everything that is wrong with the Config.
func (c Config) Validate() error {
	var faults []error
	if c.Policy != DropStale {
		faults = append(faults, fmt.Errorf("ordering: Policy: %d is unknown", c.Policy))
	}
	if _, err := c.table(); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// PositionOf finds the position of a message and checks it. Its errors wrap ErrInvalidPosition, whatever Position
// returned, but for a Position that is itself at fault: nil, or made from nonsense (see JSONFields).
func (c Config) PositionOf(msg *message.Message) (Position, error) {
	if c.Position == nil {
		return Position{}, fmt.Errorf("ordering: %w: Position is nil", misuse.Err)
	}
	return c.Position.find(msg)
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
		return "", fmt.Errorf("ordering: Table: %w", err)
	}
	return quoted, nil
}
