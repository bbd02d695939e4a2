// Package sqlname quotes the names of tables that users configure.
package sqlname

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxBytes is NAMEDATALEN - 1: PostgreSQL cuts longer names off without an error.
const maxBytes = 63

// Table quotes a name of the form "table" or "schema.table", each part as it stands, ready to be spliced into SQL.
func Table(name string) (string, error) {
	schema, table, qualified := strings.Cut(name, ".")
	if !qualified {
		return part(name)
	}
	s, err := part(schema)
	if err != nil {
		return "", fmt.Errorf("schema of %q: %w", name, err)
	}
	t, err := part(table)
	if err != nil {
		return "", fmt.Errorf("table of %q: %w", name, err)
	}
	return s + "." + t, nil
}

// Literal quotes text as an SQL string.
func Literal(text string) string {
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}

func part(name string) (string, error) {
	switch {
	case name == "":
		return "", errors.New("empty name")
	case len(name) > maxBytes:
		return "", fmt.Errorf("name %q is longer than %d bytes", name, maxBytes)
	case !utf8.ValidString(name):
		return "", fmt.Errorf("name %q is not valid UTF-8", name)
	case strings.ContainsAny(name, ".\x00"):
		return "", fmt.Errorf("name %q holds a dot or a NUL", name)
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`, nil
}
