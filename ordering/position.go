package ordering

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/internal/jsonfield"
	"github.com/watermill-once/watermill-once/internal/keytext"
	"github.com/watermill-once/watermill-once/internal/misuse"
)

// Position is the place of an event in the history of one entity.
type Position struct {
	Entity   string // 1 to 512 bytes of valid UTF-8 without NUL
	Version  int64  // a number, or microseconds since 1970 when Clock is set
	Clock    bool   // Version is a time: equal ones do not tell which came first
	TieBreak string // compared bytewise between equal versions; at most 512 bytes of valid UTF-8 without NUL
}

// PositionFunc finds the position of a message. It depends on the message alone: any error is taken as final, as
// ErrInvalidPosition.
type PositionFunc func(*message.Message) (Position, error)

// ErrInvalidPosition says that a message's entity, version or tie-break is missing or malformed. Retrying it will
// not help.
var ErrInvalidPosition = errors.New("ordering: invalid position")

// JSONFields reads two members of the JSON payload, each given as "id", or as "data.object.id" for one in objects
// within objects.
//
// The entity is a string, or a number written as an integer, which is taken as its decimal text.
//
// The version is an integer of 64 bits, also as a string of digits (protobuf's JSON writes int64 so) and also
// negative; or an RFC 3339 time, which sets Clock. A fraction or an exponent is refused, even in 1.0 and 1e3. Of a
// time all that is finer than a microsecond is cut off; "t" and "z" may be small; a leap second counts as the last
// microsecond before it. A Unix time is a number like any other: see WithUnixTime.
//
// Names are compared exactly, unlike in encoding/json; a name that holds a dot cannot be reached. The payload must
// be one JSON value from its first byte to its last, and a member must not be there twice. A path with an empty
// name in it makes a PositionFunc that fails on every message, with an error that is not ErrInvalidPosition.
func JSONFields(entity, version string) PositionFunc {
	finder, err := jsonfield.New(entity, version)
	if err != nil {
		return broken("JSONFields", err)
	}
	entityField, versionField := fmt.Sprintf("JSON field %q", entity), fmt.Sprintf("JSON field %q", version)
	return func(msg *message.Message) (Position, error) {
		var texts [2]string
		if err := finder.Find(msg.Payload, texts[:]); err != nil {
			return Position{}, invalid(msg, err)
		}
		return read(msg, entityField, texts[0], versionField, texts[1])
	}
}

// Metadata reads the entity and the version from two metadata keys, by the rules of JSONFields.
func Metadata(entityKey, versionKey string) PositionFunc {
	if entityKey == "" || versionKey == "" {
		return broken("Metadata", errors.New("a key is empty"))
	}
	entityField, versionField := fmt.Sprintf("metadata %q", entityKey), fmt.Sprintf("metadata %q", versionKey)
	return func(msg *message.Message) (Position, error) {
		return read(msg, entityField, msg.Metadata[entityKey], versionField, msg.Metadata[versionKey])
	}
}

// WithTieBreak adds what decides between equal versions: the greater one applies, compared bytewise. Any
// dedupe.KeyFunc fits, for instance the event id where it is a ULID. A message without it has an invalid position.
func (p PositionFunc) WithTieBreak(key func(*message.Message) (string, error)) PositionFunc {
	if p == nil || key == nil {
		return broken("WithTieBreak", errors.New("a function is nil"))
	}
	return func(msg *message.Message) (Position, error) {
		position, err := p(msg)
		if err != nil {
			return Position{}, err
		}
		position.TieBreak, err = key(msg)
		if errors.Is(err, misuse.Err) {
			return Position{}, err
		}
		if err != nil {
			return Position{}, invalid(msg, fmt.Errorf("tie-break: %w", err))
		}
		if err := keytext.Check(position.TieBreak); err != nil {
			return Position{}, invalid(msg, fmt.Errorf("tie-break %w", err))
		}
		return position, nil
	}
}

// WithUnixTime says that the version is the time since 1970, counted in unit (time.Second, time.Millisecond): it
// becomes microseconds and sets Clock. Use it wherever the number is a time. Two changes within a unit would
// otherwise pass for one, and the second would be dropped. A version that is a time already stays as it is.
func (p PositionFunc) WithUnixTime(unit time.Duration) PositionFunc {
	switch {
	case p == nil:
		return broken("WithUnixTime", errors.New("the PositionFunc is nil"))
	case unit <= 0 || unit%time.Microsecond != 0 && time.Microsecond%unit != 0:
		return broken("WithUnixTime", fmt.Errorf("the unit is %s", unit))
	}
	return func(msg *message.Message) (Position, error) {
		position, err := p(msg)
		if err != nil || position.Clock {
			return position, err
		}
		position.Clock = true
		if unit < time.Microsecond {
			position.Version = floorDiv(position.Version, int64(time.Microsecond/unit))
			return position, nil
		}
		n := int64(unit / time.Microsecond)
		if position.Version > math.MaxInt64/n || position.Version < math.MinInt64/n {
			return Position{}, invalid(msg, fmt.Errorf("version is out of range for a time in units of %s", unit))
		}
		position.Version *= n
		return position, nil
	}
}

// find calls p and checks what it returns.
func (p PositionFunc) find(msg *message.Message) (Position, error) {
	position, err := p(msg)
	if err != nil {
		if errors.Is(err, ErrInvalidPosition) || errors.Is(err, misuse.Err) {
			return Position{}, err
		}
		return Position{}, invalid(msg, err)
	}
	if err := position.check(); err != nil {
		return Position{}, invalid(msg, err)
	}
	return position, nil
}

func (p Position) check() error {
	if err := keytext.Check(p.Entity); err != nil {
		return fmt.Errorf("entity %w", err)
	}
	if err := keytext.Check(p.TieBreak); err != nil && !errors.Is(err, keytext.ErrEmpty) {
		return fmt.Errorf("tie-break %w", err)
	}
	return nil
}

func read(msg *message.Message, entityField, entity, versionField, version string) (Position, error) {
	if err := keytext.Check(entity); err != nil {
		return Position{}, invalid(msg, fmt.Errorf("entity, %s, %w", entityField, err))
	}
	n, clock, err := parseVersion(version)
	if err != nil {
		return Position{}, invalid(msg, fmt.Errorf("version, %s, %w", versionField, err))
	}
	return Position{Entity: entity, Version: n, Clock: clock}, nil
}

// invalid names the message. The UUID may be anything that a producer sent: it is quoted, and cut.
func invalid(msg *message.Message, err error) error {
	return fmt.Errorf("%w: message %.80q: %w", ErrInvalidPosition, msg.UUID, err)
}

// broken makes a PositionFunc that says what was wrong in making it.
func broken(name string, fault error) PositionFunc {
	err := fmt.Errorf("ordering: %s %w: %w", name, misuse.Err, fault)
	return func(*message.Message) (Position, error) { return Position{}, err }
}

// floorDiv keeps times before 1970 in order with those after.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
