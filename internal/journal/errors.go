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
func notDone(err error) bool {
	return marked(err, func(err error) (yes, known bool) {
		mark, known := err.(interface{ NotDone() bool })
		return known && mark.NotDone(), known
	}) != nil
}

// FinalIn gives the error in err that says that it is the outcome; nil: there is none.
func FinalIn(err error) error {
	return marked(err, func(err error) (yes, known bool) {
		mark, known := err.(interface{ Final() bool })
		return known && mark.Final(), known
	})
}

// marked gives the outermost error in err that is known to is, if the answer is yes. Where several are joined each must be one, and
// the first is given: that one of two calls was refused, or not made, says nothing about the other.
func marked(err error, is func(error) (yes, known bool)) error {
	yes, known := is(err)
	switch {
	case yes:
		return err
	case known:
		return nil
	}
	switch err := err.(type) {
	case interface{ Unwrap() error }:
		return marked(err.Unwrap(), is)
	case interface{ Unwrap() []error }:
		joined := err.Unwrap()
		for _, each := range joined {
			if marked(each, is) == nil {
				return nil
			}
		}
		if len(joined) > 0 {
			return marked(joined[0], is)
		}
	}
	return nil
}
