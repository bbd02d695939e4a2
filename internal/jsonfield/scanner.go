package jsonfield

import (
	"fmt"
	"math/bits"
)

// maxDepth is where encoding/json stops too; it keeps a hostile document from growing the stack.
const maxDepth = 10_000

type scanner struct {
	data   []byte
	pos    int
	finder *Finder
	found  []string
}

// value reads one value. wanted is the set of paths that lead here, depth how many of their names they have used up,
// nesting how many arrays and objects are open.
func (s *scanner) value(wanted uint64, depth, nesting int) error {
	if s.pos == len(s.data) {
		return s.invalid()
	}
	ends := s.ending(wanted, depth)
	through := wanted &^ ends
	switch c := s.data[s.pos]; c {
	case '{':
		if ends != 0 {
			return s.finder.fault(ends, "is an object")
		}
		return s.object(through, depth, nesting+1)
	case '[':
		if err := s.refuse(ends, through, "an array"); err != nil {
			return err
		}
		return s.array(nesting + 1)
	case '"':
		raw, escaped, err := s.str()
		if err != nil || wanted == 0 {
			return err
		}
		if through != 0 {
			return s.finder.fault(through, "leads through a string")
		}
		text, ok := unescape(raw, escaped)
		if !ok {
			return s.finder.fault(ends, "is not valid UTF-8")
		}
		s.set(ends, text)
		return nil
	case 't':
		return s.literal("true", ends, through, "a boolean")
	case 'f':
		return s.literal("false", ends, through, "a boolean")
	case 'n':
		return s.literal("null", 0, 0, "")
	default:
		text, integer, err := s.number()
		if err != nil || wanted == 0 {
			return err
		}
		if through != 0 {
			return s.finder.fault(through, "leads through a number")
		}
		if !integer {
			return s.finder.fault(ends, "is a number that is not written as an integer")
		}
		if string(text) == "-0" {
			text = text[1:]
		}
		s.set(ends, string(text))
		return nil
	}
}

// ending gives those of the wanted paths that have no name left.
func (s *scanner) ending(wanted uint64, depth int) (ends uint64) {
	for left := wanted; left != 0; left &= left - 1 {
		i := bits.TrailingZeros64(left)
		if len(s.finder.paths[i]) == depth {
			ends |= 1 << i
		}
	}
	return ends
}

func (s *scanner) set(ends uint64, text string) {
	for ; ends != 0; ends &= ends - 1 {
		s.found[bits.TrailingZeros64(ends)] = text
	}
}

func (s *scanner) refuse(ends, through uint64, what string) error {
	switch {
	case ends != 0:
		return s.finder.fault(ends, "is "+what)
	case through != 0:
		return s.finder.fault(through, "leads through "+what)
	}
	return nil
}

func (s *scanner) object(wanted uint64, depth, nesting int) error {
	if nesting > maxDepth {
		return s.invalid()
	}
	s.pos++ // {
	s.space()
	if s.next('}') {
		return nil
	}
	var seen uint64
	for {
		if s.pos == len(s.data) || s.data[s.pos] != '"' {
			return s.invalid()
		}
		raw, escaped, err := s.str()
		if err != nil {
			return err
		}
		matched := s.match(wanted, depth, raw, escaped)
		if twice := matched & seen; twice != 0 {
			return s.finder.fault(twice, "is there twice")
		}
		seen |= matched

		s.space()
		if !s.next(':') {
			return s.invalid()
		}
		s.space()
		if err := s.value(matched, depth+1, nesting); err != nil {
			return err
		}
		s.space()
		if s.next('}') {
			return nil
		}
		if !s.next(',') {
			return s.invalid()
		}
		s.space()
	}
}

// match gives those of the wanted paths whose next name is this one.
func (s *scanner) match(wanted uint64, depth int, raw []byte, escaped bool) (matched uint64) {
	if wanted == 0 {
		return 0
	}
	if escaped {
		name, ok := unescape(raw, true)
		if !ok {
			return 0
		}
		raw = []byte(name)
	}
	for left := wanted; left != 0; left &= left - 1 {
		i := bits.TrailingZeros64(left)
		if s.finder.paths[i][depth] == string(raw) {
			matched |= 1 << i
		}
	}
	return matched
}

func (s *scanner) array(nesting int) error {
	if nesting > maxDepth {
		return s.invalid()
	}
	s.pos++ // [
	s.space()
	if s.next(']') {
		return nil
	}
	for {
		if err := s.value(0, 0, nesting); err != nil {
			return err
		}
		s.space()
		if s.next(']') {
			return nil
		}
		if !s.next(',') {
			return s.invalid()
		}
		s.space()
	}
}

func (s *scanner) literal(word string, ends, through uint64, what string) error {
	if len(s.data)-s.pos < len(word) || string(s.data[s.pos:s.pos+len(word)]) != word {
		return s.invalid()
	}
	s.pos += len(word)
	return s.refuse(ends, through, what)
}

func (s *scanner) number() (text []byte, integer bool, err error) {
	start := s.pos
	s.next('-')
	if !s.next('0') && !s.digits() {
		return nil, false, s.invalid()
	}
	integer = true
	if s.next('.') {
		integer = false
		if !s.digits() {
			return nil, false, s.invalid()
		}
	}
	if s.next('e') || s.next('E') {
		integer = false
		if !s.next('+') {
			s.next('-')
		}
		if !s.digits() {
			return nil, false, s.invalid()
		}
	}
	return s.data[start:s.pos], integer, nil
}

func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.data) && s.data[s.pos]-'0' <= 9 {
		s.pos++
	}
	return s.pos > start
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

func (s *scanner) next(c byte) bool {
	if s.pos < len(s.data) && s.data[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

// invalid names the place only: the payload stays out of every error.
func (s *scanner) invalid() error {
	return fmt.Errorf("payload is not one valid JSON value (at byte %d)", s.pos)
}
