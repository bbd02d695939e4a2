package outbox

import (
	"fmt"
	"slices"
)

// maxShards leaves the ids of an outbox's locks sixteen bits for the shard.
const maxShards = 1024

// shardLocks are the advisory locks by which the relays of one outbox share its shards. Each relay holds one shared that
// says it is there, and how many shards it counts; and one for each shard that it sends.
type shardLocks struct {
	count  int
	door   int64 // held while a relay looks who is there
	member int64 // ids up to 65535 above it: the number of shards
	shard  int64 // ids up to 65535 above it: the shard
}

// newShardLocks derives the ids from the outbox and its table, of which there may be one in each of several schemas.
// The number of shards is part of the ids.
func newShardLocks(topic string, table uint32, count int) shardLocks {
	name := fmt.Sprintf("%s %d", topic, table)
	return shardLocks{
		count:  count,
		door:   lockID("door", name),
		member: lockID("members", name) &^ 0xffff,
		shard:  lockID(fmt.Sprintf("shards %d", count), name) &^ 0xffff,
	}
}

// held is one lock in pg_locks.
type held struct {
	pid uint32
	id  int64
}

// roster is who is there and what they hold.
type roster struct {
	members []uint32       // pids, sorted
	counts  []int          // numbers of shards, of other relays, that are not ours
	holder  map[int]uint32 // of the shards
}

func (l shardLocks) roster(locks []held) roster {
	r := roster{holder: make(map[int]uint32)}
	for _, h := range locks {
		switch h.id &^ 0xffff {
		case l.member:
			if count := int(h.id & 0xffff); count != l.count {
				r.counts = append(r.counts, count)
			} else {
				r.members = append(r.members, h.pid)
			}
		case l.shard:
			r.holder[int(h.id&0xffff)] = h.pid
		}
	}
	slices.Sort(r.members)
	r.members = slices.Compact(r.members)
	return r
}

// quota is how many shards the relay of a pid may hold. The quotas of all relays add up to the number of shards, so that
// each relay finds its share free when the others have given back what is beyond theirs.
func (r roster) quota(pid uint32, shards int) int {
	rank, there := slices.BinarySearch(r.members, pid)
	if !there {
		return 0
	}
	quota := shards / len(r.members)
	if rank < shards%len(r.members) {
		quota++
	}
	return quota
}

// free gives shards that nobody holds, beginning at a different one for each relay.
func (r roster) free(pid uint32, shards int) []int {
	var free []int
	rank, _ := slices.BinarySearch(r.members, pid)
	first := 0
	if len(r.members) > 0 {
		first = rank * shards / len(r.members)
	}
	for i := range shards {
		shard := (first + i) % shards
		if _, taken := r.holder[shard]; !taken {
			free = append(free, shard)
		}
	}
	return free
}
