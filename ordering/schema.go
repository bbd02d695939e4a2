package ordering

import (
	_ "embed"

	"github.com/watermill-once/watermill-once/internal/ddl"
)

//go:embed schema.sql
var schema string

// Schema is the package's schema.sql under the configured name, for a migration or for once.InitializeSchema. It
// creates what is missing and otherwise changes nothing, takes no lock that waits for anybody, and needs no right
// to create. Two runs at once on a database without the table can collide: the later one fails and may be run
// again. A Config that Validate refuses gives a script that PostgreSQL refuses.
func (c Config) Schema() string {
	return ddl.Rename(schema, defaultTable, c.QuotedTable())
}
