package outbox

import (
	"crypto/sha256"
	"encoding/binary"
)

// buckets is the number of locks that the keys of an outbox share. One lock for each key would empty the lock table of
// a server at default settings when a transaction writes a few thousand keys, and that fails everybody's transactions.
const buckets = 1024

// keyLocks are the ids of the advisory locks for the keys of one outbox.
type keyLocks [buckets]int64

func newKeyLocks(topic string) *keyLocks {
	var locks keyLocks
	first := lockID("key", topic) &^ (buckets - 1)
	for i := range locks {
		locks[i] = first + int64(i)
	}
	return &locks
}

// of gives the lock of a key. The same key must have the same lock in every process, of any version: FNV-1a, folded.
func (l *keyLocks) of(key string) *int64 {
	hash := uint64(14695981039346656037)
	for i := range len(key) {
		hash ^= uint64(key[i])
		hash *= 1099511628211
	}
	return &l[(hash^hash>>32)%buckets]
}

// readerLock keeps a stock subscriber and a relay off the same outbox: its id is this, by exclusive or with the table's oid,
// since there may be one in each of several schemas. The subscriber tries it for its transaction; a relay holds it shared.
func readerLock(topic string) int64 { return lockID("reader", topic) }

// lockID gives a positive id: a negative number behind a cast is not read alike in all of pgx's modes.
func lockID(purpose, topic string) int64 {
	sum := sha256.Sum256([]byte("watermill-once outbox " + purpose + " " + topic))
	return int64(binary.BigEndian.Uint64(sum[:8]) >> 1)
}
