package ordering

import (
	"errors"
	"strconv"

	"github.com/watermill-once/watermill-once/internal/rfc3339"
)

var (
	errNoVersion = errors.New("is empty or absent")
	errVersion   = errors.New("is neither a 64-bit integer nor an RFC 3339 time")
)

// parseVersion reads an integer, or a time as microseconds since 1970. Errors hold nothing of the text: it may be
// from the payload.
func parseVersion(text string) (version int64, clock bool, err error) {
	if text == "" {
		return 0, false, errNoVersion
	}
	if micros, ok := rfc3339.Micros(text); ok {
		return micros, true, nil
	}
	if text[0] == '+' { // which ParseInt takes
		return 0, false, errVersion
	}
	version, err = strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, false, errVersion
	}
	return version, false, nil
}
