package ddl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRename(t *testing.T) {
	t.Parallel()
	const script = "do $schema$\nto_regclass('events') events\n$schema$;"
	for quoted, want := range map[string]string{
		`"claims"`:              "do $schema$\nto_regclass('\"claims\"') \"claims\"\n$schema$;",
		`"shop"."it's"`:         "do $schema$\nto_regclass('\"shop\".\"it''s\"') \"shop\".\"it's\"\n$schema$;",
		`"events"`:              "do $schema$\nto_regclass('\"events\"') \"events\"\n$schema$;",
		`"events'events'"`:      "do $schema$\nto_regclass('\"events''events''\"') \"events'events'\"\n$schema$;",
		`"a$schema$b"`:          "do $sschema$\nto_regclass('\"a$schema$b\"') \"a$schema$b\"\n$sschema$;",
		`"a$schema$b$sschema$"`: "do $ssschema$\nto_regclass('\"a$schema$b$sschema$\"') \"a$schema$b$sschema$\"\n$ssschema$;",
	} {
		require.Equal(t, want, Rename(script, "events", quoted))
	}
}
