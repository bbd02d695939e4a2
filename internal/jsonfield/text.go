package jsonfield

import (
	"unicode/utf16"
	"unicode/utf8"
)

// plain are the bytes that stand for themselves in a string.
var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= ' ' && c != '"' && c != '\\'
	}
	return t
}()

// str reads a string and gives what stands between the quotes.
func (s *scanner) str() (raw []byte, escaped bool, err error) {
	data, i := s.data, s.pos+1
	start := i
	for i < len(data) {
		c := data[i]
		if plain[c] {
			i++
			continue
		}
		if c == '"' {
			s.pos = i + 1
			return data[start:i], escaped, nil
		}
		if c != '\\' {
			break
		}
		n := escapeLen(data[i:])
		if n == 0 {
			break
		}
		escaped = true
		i += n
	}
	s.pos = i
	return nil, false, s.invalid()
}

// escapeLen gives the length of the escape that rest begins with, 0 where it is none.
func escapeLen(rest []byte) int {
	if len(rest) < 2 {
		return 0
	}
	switch rest[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := unit(rest); ok {
			return 6
		}
	}
	return 0
}

// unit reads \uXXXX.
func unit(rest []byte) (r rune, ok bool) {
	if len(rest) < 6 || rest[0] != '\\' || rest[1] != 'u' {
		return 0, false
	}
	for _, c := range rest[2:6] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// unescape gives the text of a string that str has read; false where it is no valid UTF-8 or half of a surrogate pair.
func unescape(raw []byte, escaped bool) (text string, ok bool) {
	if !utf8.Valid(raw) {
		return "", false
	}
	if !escaped {
		return string(raw), true
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			i++
			continue
		}
		if raw[i+1] != 'u' {
			out = append(out, short(raw[i+1]))
			i += 2
			continue
		}
		r, _ := unit(raw[i:])
		i += 6
		if utf16.IsSurrogate(r) {
			low, _ := unit(raw[i:])
			r = utf16.DecodeRune(r, low)
			if r == utf8.RuneError {
				return "", false
			}
			i += 6
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out), true
}

func short(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c // " \ /
}
