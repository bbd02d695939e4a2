package child

import (
	"bytes"
	"io"
	"sync"
)

// Tail passes on what a child writes and keeps the last part, for error messages.
type Tail struct {
	to io.Writer

	mu   sync.Mutex
	last []byte
}

// NewTail makes a tail that passes on to w.
func NewTail(w io.Writer) *Tail { return &Tail{to: w} }

const tailBytes = 32 << 10

func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// An error here would stop the child, for no more than a full disk behind its log.
	_, _ = t.to.Write(p)
	t.last = append(t.last, p...)
	if over := len(t.last) - tailBytes; over > tailBytes {
		t.last = bytes.Clone(t.last[over:])
	}
	return len(p), nil
}

// String is the last part, some tens of kilobytes, of what was written since Reset.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.last))
}

// Reset forgets what was written.
func (t *Tail) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = nil
}
