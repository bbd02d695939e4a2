package broker

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
)

// secrets are what no error and no log may show, in every way they can be written. Clients put the URLs they are given, and what
// they make of them, into their errors.
type secrets []string

func (s *secrets) add(values ...string) {
	for _, value := range values {
		for _, form := range []string{value, url.QueryEscape(value), url.PathEscape(value), url.UserPassword("", value).String()[1:]} {
			if form != "" && !slices.Contains(*s, form) {
				*s = append(*s, form)
			}
		}
	}
	// One may be a part of another.
	slices.SortFunc(*s, func(a, b string) int { return len(b) - len(a) })
}

func (s secrets) clean(text string) string {
	for _, secret := range s {
		text = strings.ReplaceAll(text, secret, "xxxxx")
	}
	return text
}

// redact gives an error that prints without secrets, and otherwise is the same.
func (s secrets) redact(err error) error {
	if err == nil {
		return nil
	}
	if text := err.Error(); s.clean(text) != text {
		return redacted{s.clean(text), err}
	}
	return err
}

type redacted struct {
	text string
	err  error
}

func (r redacted) Error() string { return r.text }

// Is and As look at the error itself; there is no Unwrap, which would give away what prints what must not be seen.
func (r redacted) Is(target error) bool { return errors.Is(r.err, target) }
func (r redacted) As(target any) bool   { return errors.As(r.err, target) }

// logger gives one that logs without secrets.
func (s secrets) logger(to watermill.LoggerAdapter) watermill.LoggerAdapter {
	if len(s) == 0 {
		return to
	}
	return cleanLogger{to, s}
}

type cleanLogger struct {
	to      watermill.LoggerAdapter
	secrets secrets
}

func (l cleanLogger) Error(text string, err error, fields watermill.LogFields) {
	l.to.Error(l.secrets.clean(text), l.secrets.redact(err), l.fields(fields))
}

func (l cleanLogger) Info(text string, fields watermill.LogFields) {
	l.to.Info(l.secrets.clean(text), l.fields(fields))
}

func (l cleanLogger) Debug(text string, fields watermill.LogFields) {
	l.to.Debug(l.secrets.clean(text), l.fields(fields))
}

func (l cleanLogger) Trace(text string, fields watermill.LogFields) {
	l.to.Trace(l.secrets.clean(text), l.fields(fields))
}

func (l cleanLogger) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return cleanLogger{l.to.With(l.fields(fields)), l.secrets}
}

func (l cleanLogger) fields(fields watermill.LogFields) watermill.LogFields {
	clean := make(watermill.LogFields, len(fields))
	for name, value := range fields {
		switch value := value.(type) {
		case error:
			clean[name] = l.secrets.redact(value)
		default:
			// Numbers and the like stay what they are.
			if text := fmt.Sprint(value); l.secrets.clean(text) != text {
				clean[name] = l.secrets.clean(text)
			} else {
				clean[name] = value
			}
		}
	}
	return clean
}
