package outbox

import (
	"testing"

	"pgregory.net/rapid"
)

// However many relays there are and whatever they hold: when each gives back what is beyond its share and takes what is
// free, all shards are held, and as evenly as can be.
func TestSharesAddUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(1, 40).Draw(t, "shards")
		pids := rapid.SliceOfNDistinct(rapid.Uint32Range(1, 1000), 1, 50, rapid.ID).Draw(t, "pids")
		locks := newShardLocks("outbox", 1, count)
		var all []held
		for _, pid := range pids {
			all = append(all, held{pid, locks.member | int64(count)})
		}
		of := make(map[uint32][]int)
		for shard := range count {
			if holder := rapid.IntRange(0, len(pids)).Draw(t, "holder"); holder < len(pids) {
				all = append(all, held{pids[holder], locks.shard | int64(shard)})
				of[pids[holder]] = append(of[pids[holder]], shard)
			}
		}
		// First some give back, in turn, then all take.
		r := locks.roster(all)
		total := 0
		for _, pid := range pids {
			quota := r.quota(pid, count)
			total += quota
			if quota < count/len(pids) || quota > count/len(pids)+1 {
				t.Fatalf("a share of %d of %d shards among %d", quota, count, len(pids))
			}
			for len(of[pid]) > quota {
				delete(r.holder, of[pid][0])
				of[pid] = of[pid][1:]
			}
		}
		if total != count {
			t.Fatalf("shares add up to %d of %d", total, count)
		}
		for _, pid := range pids {
			for _, shard := range r.free(pid, count) {
				if len(of[pid]) < r.quota(pid, count) {
					r.holder[shard] = pid
					of[pid] = append(of[pid], shard)
				}
			}
		}
		if len(r.holder) != count {
			t.Fatalf("%d of %d shards are held", len(r.holder), count)
		}
	})
}

func TestOtherCountsAreSeen(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		mine, theirs := rapid.IntRange(1, maxShards).Draw(t, "mine"), rapid.IntRange(1, maxShards).Draw(t, "theirs")
		other := newShardLocks("outbox", 1, theirs)
		r := newShardLocks("outbox", 1, mine).roster([]held{{7, other.member | int64(theirs)}, {7, other.shard | 3}})
		if (len(r.counts) == 0) != (mine == theirs) {
			t.Fatalf("%d and %d: %v", mine, theirs, r)
		}
	})
}
