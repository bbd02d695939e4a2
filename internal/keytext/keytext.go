// Package keytext checks the texts that name things in the tables: event ids, consumers, entities, ordering keys.
package keytext

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxBytes is the longest key: far below what a PostgreSQL index entry holds.
const MaxBytes = 512

// ErrEmpty is the fault of a key that is not there.
var ErrEmpty = errors.New("is empty or absent")

// Check tells what is wrong with a key: it must be 1 to 512 bytes of valid UTF-8 without NUL, which PostgreSQL's
// text cannot hold.
func Check(key string) error {
	switch {
	case key == "":
		return ErrEmpty
	case len(key) > MaxBytes:
		return fmt.Errorf("is %d bytes long, longer than %d", len(key), MaxBytes)
	case !utf8.ValidString(key):
		return errors.New("is not valid UTF-8")
	case strings.IndexByte(key, 0) >= 0:
		return errors.New("holds a NUL")
	}
	return nil
}
