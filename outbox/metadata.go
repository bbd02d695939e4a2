package outbox

import (
	"fmt"
	"slices"
	"strings"

	"github.com/watermill-once/watermill-once/internal/attempt"
)

type field struct{ key, value string }

// encodeMetadata writes metadata as a JSON object of strings, sorted, with what is inherited. Its errors name the key.
func encodeMetadata(metadata, inherited map[string]string) (string, error) {
	fields := make([]field, 0, 16) // on the stack, for most messages
	for key, value := range inherited {
		if inherits(metadata, key) && checkText(value) == nil {
			fields = append(fields, field{key, value})
		}
	}
	taken := fields
	for key, value := range metadata {
		if value == "" && slices.ContainsFunc(taken, func(f field) bool { return f.key == key }) {
			continue
		}
		if err := checkText(key); err != nil {
			return "", fmt.Errorf("key %.64q %w", key, err)
		}
		if err := checkText(value); err != nil {
			return "", fmt.Errorf("%.64q %w", key, err)
		}
		fields = append(fields, field{key, value})
	}
	slices.SortFunc(fields, func(a, b field) int { return strings.Compare(a.key, b.key) })

	b := append(make([]byte, 0, 512), '{') // on the stack too
	for i := range fields {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendJSON(b, fields[i].key)
		b = append(b, ':')
		b = appendJSON(b, fields[i].value)
	}
	return string(append(b, '}')), nil
}

// inherits tells whether a message lacks a header. A message that brings its own traceparent keeps its whole trace: the
// state of another would contradict it.
func inherits(metadata map[string]string, key string) bool {
	if metadata[key] != "" {
		return false
	}
	return key == attempt.CorrelationIDKey || metadata[attempt.TraceKeys[0]] == ""
}

// appendJSON writes text, which is valid UTF-8, as a JSON string.
func appendJSON(b []byte, text string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	plain := 0
	for i := range len(text) {
		c := text[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, text[plain:i]...)
		plain = i + 1
		if c < ' ' {
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		} else {
			b = append(b, '\\', c)
		}
	}
	b = append(b, text[plain:]...)
	return append(b, '"')
}
