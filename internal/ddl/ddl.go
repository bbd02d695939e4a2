// Package ddl puts the configured names of tables into the packages' schema.sql files.
package ddl

import (
	"strings"

	"github.com/watermill-once/watermill-once/internal/sqlname"
)

// Rename gives the script for a table of another name. In the script the table stands under its plain name, as an
// identifier or, between single quotes, as the argument of to_regclass, and nowhere else; the dollar quote is $schema$.
// quoted is the new name as sqlname.Table gives it.
func Rename(script, name, quoted string) string {
	tag := "$schema$"
	for strings.Contains(quoted, tag) {
		tag = "$" + "s" + tag[1:]
	}
	return strings.NewReplacer(
		"'"+name+"'", sqlname.Literal(quoted),
		name, quoted,
		"$schema$", tag,
	).Replace(script)
}
