package outbox

import (
	_ "embed"

	"github.com/watermill-once/watermill-once/internal/ddl"
	"github.com/watermill-once/watermill-once/internal/sqlname"
)

//go:embed schema.sql
var schema string

// Schema is the package's schema.sql for this outbox. It may be copied into a migration. Running it again changes
// nothing. Where the config is not valid, running it fails with the fault.
func (c Config) Schema() string {
	c.setDefaults()
	if fault := c.Validate(); fault != nil {
		raise := "begin raise exception using message = " + sqlname.Literal("outbox: config: "+fault.Error()) + "; end"
		return "do " + sqlname.Literal(raise) + ";"
	}
	return ddl.Rename(schema, "watermill_outbox", c.Table())
}
