package dedupe

import "github.com/watermill-once/watermill-once/internal/journal"

var (
	// ErrInFlight: the same call is being made elsewhere, and has not ended within EffectsConfig.Wait. Not permanent: nack, and
	// come again.
	ErrInFlight = journal.ErrInFlight

	// ErrUnknown: an earlier call under this key may or may not have taken effect, and EffectsConfig.OnUnknown is Refuse. No retry
	// will find out, so it is permanent and goes to the poison queue, from where the message is replayed when an operator
	// has resolved the key (Effects.Resolve).
	ErrUnknown = journal.ErrUnknown

	// ErrFingerprintMismatch: the key of an effect was used for another request, or with Config.Fingerprint an event's id for another
	// payload. Permanent.
	ErrFingerprintMismatch = journal.ErrFingerprintMismatch

	// ErrInTransaction: Do was called in the transaction of a once.Transactional handler. A fault of the program, permanent, and not
	// for the poison queue.
	ErrInTransaction = journal.ErrInTransaction

	// ErrLeaseLost: the lease could not be renewed in time, or somebody else has the key by now. What call returned is not stored.
	// Not permanent: the next Do finds out.
	ErrLeaseLost = journal.ErrLeaseLost

	// ErrOutcomeLost: call returned, and its outcome could not be stored: the database was away for the rest of the lease. The
	// call is unknown. Not permanent: the next Do does as EffectsConfig.OnUnknown says.
	ErrOutcomeLost = journal.ErrOutcomeLost

	// ErrNotUnknown: there is nothing to resolve under this key. It is in flight, free, done or failed, or was never there.
	ErrNotUnknown = journal.ErrNotUnknown
)
