// Package jsonfield reads a few scalar members out of a JSON document in one pass, without decoding the rest of it.
//
// What it reads decides whether two messages are the same event, so it is stricter than encoding/json: where two
// readers could see two values (a member that is there twice, bytes after the document), or two values could become
// one (invalid UTF-8 and lone surrogates, which encoding/json turns into U+FFFD), it reports a fault.
package jsonfield

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"unicode/utf8"
)

// Finder looks for the texts at some paths.
type Finder struct {
	paths [][]string
	names []string // the paths as they were given
}

// New takes the paths to look for: names of members joined by dots, from the outermost object inwards. Names are
// compared exactly, as they read after unescaping. A name that holds a dot cannot be reached.
func New(paths ...string) (*Finder, error) {
	f := &Finder{names: paths}
	if len(paths) > 64 {
		return nil, errors.New("more than 64 paths")
	}
	for _, path := range paths {
		names := strings.Split(path, ".")
		for _, name := range names {
			if name == "" || !utf8.ValidString(name) {
				return nil, fmt.Errorf("path %q is not names joined by dots", path)
			}
		}
		f.paths = append(f.paths, names)
	}
	return f, nil
}

// Find reads the whole document and fills texts, one for each path: a string's text, an integer as its decimal
// text, "" where there is no such member or null. All are valid UTF-8.
//
// It fails where data is not one JSON value and nothing else, and where a path leads to or through something that
// it cannot: an object, an array, a boolean, a number that is not written as an integer. No data at all is a
// document without members, as a Kafka tombstone is. Errors hold no data.
func (f *Finder) Find(data []byte, texts []string) error {
	clear(texts)
	if len(data) == 0 {
		return nil
	}
	s := scanner{data: data, finder: f, found: texts}
	all := uint64(1)<<len(f.paths) - 1
	s.space()
	if err := s.value(all, 0, 0); err != nil {
		return err
	}
	s.space()
	if s.pos != len(data) {
		return s.invalid()
	}
	return nil
}

// fault says what is wrong at the first of the paths in set.
func (f *Finder) fault(set uint64, what string) error {
	return fmt.Errorf("JSON field %q %s", f.names[bits.TrailingZeros64(set)], what)
}
