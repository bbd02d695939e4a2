package middleware

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/internal/jsonfield"
	"github.com/watermill-once/watermill-once/internal/misuse"
	"github.com/watermill-once/watermill-once/internal/rfc3339"
)

// CloudEventTime is the time attribute of a CloudEvent, for Config.Time. In binary mode it is in the metadata, under the names that
// dedupe.CloudEventID tells of ("ce_time"), in structured mode the member "time" of a JSON payload that has "specversion" too.
// CloudEvents makes it optional: it suits producers that always set it.
func CloudEventTime(msg *message.Message) (time.Time, error) {
	for _, key := range []string{"ce_time", "ce-time", "Ce-Time", "cloudEvents_time", "cloudEvents:time"} {
		if text := msg.Metadata[key]; text != "" {
			return parseTime(text)
		}
	}
	var texts [2]string
	if err := cloudEvent.Find(msg.Payload, texts[:]); err != nil {
		return time.Time{}, err
	}
	if texts[0] == "" {
		return time.Time{}, errors.New("no CloudEvent")
	}
	return parseTime(texts[1])
}

var cloudEvent, _ = jsonfield.New("specversion", "time")

// JSONTime is an RFC 3339 time in the JSON payload, for Config.Time: "created_at", or "data.object.created" for one in objects within
// objects. The payload is read by the rules of dedupe.JSONField.
func JSONTime(path string) func(*message.Message) (time.Time, error) {
	return jsonTime("JSONTime", path, parseTime)
}

// JSONUnixTime is JSONTime for a member that is the time since 1970 in whole units (time.Second, time.Millisecond), as a
// number or a string of digits.
func JSONUnixTime(path string, unit time.Duration) func(*message.Message) (time.Time, error) {
	if unit <= 0 {
		return brokenTime("JSONUnixTime", fmt.Errorf("the unit is %s", unit))
	}
	return jsonTime("JSONUnixTime", path, func(text string) (time.Time, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		switch {
		case text == "":
			return time.Time{}, errNoTime
		case err != nil:
			return time.Time{}, errors.New("is no 64-bit integer")
		case unit >= time.Second && unit%time.Second == 0:
			seconds := int64(unit / time.Second)
			if n > math.MaxInt64/seconds || n < math.MinInt64/seconds {
				return time.Time{}, errors.New("is out of range")
			}
			return time.Unix(n*seconds, 0), nil
		case n > math.MaxInt64/int64(unit) || n < math.MinInt64/int64(unit):
			return time.Time{}, errors.New("is out of range")
		}
		return time.Unix(0, n*int64(unit)), nil
	})
}

func jsonTime(name, path string, parse func(string) (time.Time, error)) func(*message.Message) (time.Time, error) {
	finder, err := jsonfield.New(path)
	if err != nil {
		return brokenTime(name, err)
	}
	return func(msg *message.Message) (time.Time, error) {
		var text [1]string
		if err := finder.Find(msg.Payload, text[:]); err != nil {
			return time.Time{}, err
		}
		at, err := parse(text[0])
		if err != nil {
			return time.Time{}, fmt.Errorf("JSON field %q %w", path, err)
		}
		return at, nil
	}
}

// brokenTime makes a function that says what was wrong in making it.
func brokenTime(name string, fault error) func(*message.Message) (time.Time, error) {
	err := fmt.Errorf("%s %w: %w", name, misuse.Err, fault)
	return func(*message.Message) (time.Time, error) { return time.Time{}, err }
}

var errNoTime = errors.New("is missing")

func parseTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, errNoTime
	}
	micros, ok := rfc3339.Micros(text)
	if !ok {
		return time.Time{}, errors.New("is no RFC 3339 time")
	}
	return time.UnixMicro(micros), nil
}

// timeOf gives the time of a message in microseconds since 1970.
func (c Config) timeOf(msg *message.Message) (int64, error) {
	at, err := c.Time(msg)
	if errors.Is(err, misuse.Err) {
		return 0, err
	}
	if err == nil && at.IsZero() {
		err = errNoTime
	}
	if err == nil && max(at.Year(), -at.Year()) > 200_000 { // UnixMicro would overflow
		err = errors.New("is out of range")
	}
	if err != nil {
		return 0, fmt.Errorf("%w: message %.80q: %w", ErrInvalidTime, msg.UUID, err)
	}
	return at.UnixMicro(), nil
}

// tooOldSQL gives a row where the time ($1) is further back than the age ($2), both in microseconds. It asks the clock that dates
// the claims, and so the one by which they are swept.
const tooOldSQL = `select 1
where $1::bigint < (extract(epoch from now()) * 1000000)::bigint - $2::bigint`
