package dedupe

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/watermill-once/watermill-once/internal/journal"
	"github.com/watermill-once/watermill-once/internal/keytext"
)

// Do makes a call to another system once for each key, as far as that can be known, and gives its outcome; every later Do with
// that key gives the same outcome without a call. The key is 1 to 512 bytes, and is handed to call as the idempotency key: that of
// once.IdempotencyKeyFor (64 ASCII characters), or any text that is the same on every attempt and for no other call.
//
// Before the call its intent is committed, under a lease that is renewed while call runs; after it, the outcome is stored: two
// round trips in all, and one where the outcome is there. call's context ends with the caller's, and when the lease is lost: then
// somebody else may be calling. Whatever call returns by then is refused once somebody is (ErrLeaseLost).
//
// What call returns decides what is stored:
//
//   - a value: done. It is stored as JSON and Do gives what was read back from that, the first time too.
//   - Final(err): done as well. It was refused for good, and every later Do returns a *FinalError.
//   - NotDone(err): it certainly did not take effect. The next Do calls again, whatever OnUnknown says.
//   - another error, or a panic: unknown, since a timeout may have come after the effect. EffectsConfig.OnUnknown decides what the
//     next Do makes of it. It is unknown too when the process has died and the lease is over.
//
// Final and NotDone may be wrapped. Where several errors are joined, also by two %w, each of them has to be marked: of a timeout
// beside a declined card the timeout is what counts.
//
// Do not let call, or what it uses, repeat by itself what the other system does not recognise as a repetition. net/http does so with
// a request that has a header Idempotency-Key or X-Idempotency-Key, when a connection in use again breaks: to those who know no keys,
// send none.
//
// Do returns call's error as it is. Its own errors are ErrInFlight, ErrUnknown, ErrFingerprintMismatch, ErrInTransaction,
// ErrLeaseLost, ErrOutcomeLost, ErrInvalidKey, and those of the database from before the call.
//
// request is what is asked, to be told from another request under the same key, which is refused with ErrFingerprintMismatch,
// whatever the state. Only its fingerprint is stored: the SHA-256 of its JSON, members sorted. Leave out of it what differs between
// two attempts, such as the time. nil, and what is null in JSON: no fingerprint, and where either side has none nothing is compared.
//
// In the transaction of a once.Transactional handler Do is refused: its rollback would not take the call back. Publish a message
// there, and call in the handler of that.
func Do[T any](
	ctx context.Context, e *Effects, key string, request any, call func(ctx context.Context, idempotencyKey string) (T, error),
) (T, error) {
	var none, value T
	if err := keytext.Check(key); err != nil {
		return none, fmt.Errorf("%w: an effect's key %w", ErrInvalidKey, err)
	}
	fingerprint, err := fingerprintOf(request)
	if err != nil {
		return none, fmt.Errorf("dedupe: fingerprint of the request: %w", err)
	}
	var unsupported *json.UnsupportedTypeError
	if _, err := json.Marshal(none); errors.As(err, &unsupported) { // which would be found out after the call
		return none, fmt.Errorf("dedupe: the outcome's type is not for JSON: %w", err)
	}

	var refused error
	result, err := e.journal.Run(ctx, e.id(key), fingerprint, func(ctx context.Context) (journal.Outcome, error) {
		value, err := call(ctx, key)
		if final := journal.FinalIn(err); final != nil {
			refused = err
			return journal.Outcome{Final: true, Text: final.Error()}, nil
		}
		if err != nil {
			return journal.Outcome{}, err
		}
		text, err := json.Marshal(value)
		if err != nil {
			return journal.Outcome{}, fmt.Errorf("dedupe: outcome: %w", err)
		}
		return journal.Outcome{JSON: text}, nil
	})
	switch {
	case err != nil:
		return none, err
	case refused != nil:
		return none, refused
	case result.Final:
		return none, &FinalError{Text: result.Text}
	}
	if err := json.Unmarshal(result.JSON, &value); err != nil {
		var mistyped *json.UnmarshalTypeError
		if errors.As(err, &mistyped) { // its text may show a number as it is stored
			err = fmt.Errorf("json: no %s at byte %d", mistyped.Type, mistyped.Offset)
		}
		return none, fmt.Errorf("dedupe: the stored outcome is no %T: %w", value, err)
	}
	return value, nil
}

// Final makes an error the outcome of a call: it was refused for good, as a declined card is. A Probe says so too. Final(nil) is nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &FinalError{Text: err.Error(), err: err}
}

// FinalError is an error that was stored as an outcome. Calling again would not help: once.IsPermanent is true for it.
type FinalError struct {
	Text string // of the error given to Final, cut after 4 KiB where it comes from the table
	err  error
}

func (e *FinalError) Error() string { return e.Text }

// Unwrap gives the error itself to the caller whose call returned it, and nil to later ones.
func (e *FinalError) Unwrap() error { return e.err }

// Permanent tells once.IsPermanent.
func (e *FinalError) Permanent() bool { return true }

// Final tells the journal.
func (e *FinalError) Final() bool { return true }

// NotDone marks an error of a call that certainly did not take effect: the connection was refused, or the other system said that it
// is busy. NotDone(nil) is nil.
func NotDone(err error) error {
	if err == nil {
		return nil
	}
	return &notDoneError{err}
}

type notDoneError struct{ err error }

func (e *notDoneError) Error() string { return e.err.Error() }
func (e *notDoneError) Unwrap() error { return e.err }
func (e *notDoneError) NotDone() bool { return true }

// fingerprintOf writes the request as JSON, sorts its members whatever they come from, and hashes that.
func fingerprintOf(request any) ([]byte, error) {
	if request == nil {
		return nil, nil
	}
	text, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var sorted any
	if err := decoder.Decode(&sorted); err != nil {
		return nil, err
	}
	if sorted == nil {
		return nil, nil
	}
	if text, err = json.Marshal(sorted); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	return sum[:], nil
}

func (e *Effects) id(key string) journal.ID { return journal.ID{Consumer: e.config.Consumer, Key: key} }
