package journal

import (
	"errors"
	"strings"
)

// The errors of package dedupe, which tells what they mean.
var (
	ErrInFlight            = errors.New("dedupe: the call is in flight elsewhere")
	ErrUnknown             = errors.New("dedupe: it is unknown whether the call took effect")
	ErrFingerprintMismatch = errors.New("dedupe: the same key with other content")
	ErrInTransaction       = errors.New("dedupe: a call to another system inside a transaction, which cannot roll it back")
	ErrLeaseLost           = errors.New("dedupe: the lease was lost during the call")
	ErrOutcomeLost         = errors.New("dedupe: the call returned, and its outcome could not be stored")
	ErrNotUnknown          = errors.New("dedupe: there is no unknown call under the key")

	errNoJSON = errors.New("the outcome is no JSON")
)

// Trouble is an error of our own statements that says nothing about the call or its key: the database is away, full, or lacks the
// table.
type Trouble struct{ err error }

func (t *Trouble) Error() string { return t.err.Error() }
func (t *Trouble) Unwrap() error { return t.err }

// NotDone is false whatever is wrapped: that Probe could not ask says nothing about the call.
func (t *Trouble) NotDone() bool { return false }

// trouble marks err, unless it speaks of the data.
func trouble(err error) error {
	if state := sqlState(err); strings.HasPrefix(state, "22") || strings.HasPrefix(state, "23") {
		return err
	}
	return &Trouble{err}
}

// passing tells whether a statement may succeed when it is sent again a little later.
func passing(err error) bool {
	state := sqlState(err)
	if state == "" { // no answer of the server
		return true
	}
	for _, class := range []string{"08", "25006", "26000", "40", "42P05", "53", "55P03", "57014", "57P", "58"} {
		if strings.HasPrefix(state, class) {
			return true
		}
	}
	return false
}

func sqlState(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

// notDone tells whether the work says that it did not call.
func notDone(err error) bool { return isNotDone(mark(err)) }

// FinalIn gives the error in err that says that it is the outcome; nil: there is none.
func FinalIn(err error) error {
	if m := mark(err); isFinal(m) {
		return m
	}
	return nil
}

func isNotDone(err error) bool {
	m, ok := err.(interface{ NotDone() bool })
	return ok && m.NotDone()
}

func isFinal(err error) bool {
	m, ok := err.(interface{ Final() bool })
	return ok && m.Final()
}

// mark gives the outermost error in err that says what became of the call. Where several are joined each must say the same, and the
// first is given: that one of two calls was refused, or not made, says nothing about the other.
func mark(err error) error {
	switch err.(type) {
	case interface{ NotDone() bool }, interface{ Final() bool }:
		return err
	}
	switch err := err.(type) {
	case interface{ Unwrap() error }:
		return mark(err.Unwrap())
	case interface{ Unwrap() []error }:
		var first error
		for i, each := range err.Unwrap() {
			m := mark(each)
			if i == 0 {
				first = m
			}
			if !isFinal(m) && !isNotDone(m) || isFinal(m) != isFinal(first) {
				return nil
			}
		}
		return first
	}
	return nil
}
