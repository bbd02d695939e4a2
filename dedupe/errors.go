package dedupe

import (
	"errors"
	"fmt"
)

var (
	// ErrInvalidKey says that a message has no usable event id. Retrying it will not help.
	ErrInvalidKey = errors.New("dedupe: invalid event id")

	// ErrMissingKey is the ErrInvalidKey of a message that has no event id at all, or an empty one.
	ErrMissingKey = fmt.Errorf("%w: missing", ErrInvalidKey)
)

// keyError puts its text together only when asked: FirstOf drops one on every message whose first key is missing.
type keyError struct {
	kind   error // ErrInvalidKey or ErrMissingKey
	uuid   string
	field  string // "" where the reason names it
	reason error
}

// Error names the field and the message. The UUID may be anything that a producer sent: it is quoted, and cut.
func (e *keyError) Error() string {
	if e.field == "" {
		return fmt.Sprintf("%s: message %.80q: %s", e.kind, e.uuid, e.reason)
	}
	return fmt.Sprintf("%s: message %.80q: %s %s", e.kind, e.uuid, e.field, e.reason)
}

func (e *keyError) Is(target error) bool { return errors.Is(e.kind, target) }

func (e *keyError) Unwrap() error { return e.reason }
