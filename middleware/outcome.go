package middleware

import "time"

// Kind is how a delivery ended.
type Kind int

const (
	// Failed: rolled back, or in Leased not completed; the error went to the Router. Also an unknown COMMIT, a bad event id,
	// position or time, and ErrTooOld.
	Failed Kind = iota
	// Fresh: the handler ran, and its work is committed, or in Leased noted as completed.
	Fresh
	// Duplicate: this consumer has handled the event before. Acked, nothing done.
	Duplicate
	// Stale: the entity has newer state than the event's. Acked, claimed, the handler not called.
	Stale
)

func (k Kind) String() string {
	switch k {
	case Failed:
		return "failed"
	case Fresh:
		return "fresh"
	case Duplicate:
		return "duplicate"
	case Stale:
		return "stale"
	default:
		return "unknown"
	}
}

// Outcome tells of one delivery after it has ended, all attempts of ours included.
type Outcome struct {
	Kind     Kind
	Consumer string
	EventID  string // "" where the message had no valid one

	// Attempts are the transactions begun; 0 for a duplicate in the cache, a bad event id, position or time, and where there was no
	// connection. In Leased it is 1 where the handler ran.
	Attempts int

	Duration time.Duration // from the middleware's first step to its last
	Err      error         // nil unless Kind is Failed
}
