package kafkasink

// maxRound bounds what is sent at a time: brokers take 100 MB, but on a slow line that could take longer than the timeouts.
const maxRound = 8 << 20

// plan picks from the items, in their order, what may be sent now, at most a batch for each partition. An item may go if all
// that precedes it in its lane has been taken, or is just before it in the same batch. What it does not pick and does not
// settle is left for the next round.
func (p *producer) plan(round int, items []*item) []*batch {
	var batches []*batch
	byPlace := make(map[place]*batch)
	bytes := 0
	for _, it := range items {
		l := it.lane
		waits := l.round == round // for what precedes it in this round
		switch {
		case it.call.left.Load():
			it.fail(errNoAnswer, false) // nobody hears it
			continue
		case l.failed:
			it.fail(ErrHeldBack, false)
			continue
		case waits && l.batch == nil:
			continue
		case it.fault != nil:
			if waits {
				l.batch = nil
			} else {
				it.fail(it.fault, true)
			}
			continue
		}
		partition, err := p.topics[it.topic].partitionFor(it)
		if err != nil {
			if waits {
				l.batch = nil
			} else {
				it.fail(err, verdictOn(err) == hopeless)
			}
			continue
		}

		where := place{it.topic, partition}
		b := byPlace[where]
		fits := bytes == 0 || bytes+it.size <= maxRound && (b == nil || b.bytes+it.size <= p.maxBytes && len(b.items) < p.limit(where))
		l.round = round
		if !fits || waits && l.batch != b {
			l.batch = nil
			continue
		}
		if b == nil {
			b = &batch{place: where, bytes: batchOverhead}
			byPlace[where] = b
			batches = append(batches, b)
		}
		l.batch = b
		b.items = append(b.items, it)
		b.bytes += it.size
		bytes += it.size
	}
	return batches
}

// limit is how many records may go to a partition at once. It is there as long as one record among many seems to be
// refused, and searches for that one.
func (p *producer) limit(where place) int {
	if limit, ok := p.limits[where]; ok {
		return limit
	}
	return maxRecords
}

// maxRecords is more than a round holds of any size.
const maxRecords = 1 << 20

func (p *producer) narrow(b *batch) {
	p.limits[b.place] = max(1, len(b.items)/2)
}

func (p *producer) widen(b *batch) {
	limit, ok := p.limits[b.place]
	switch {
	case !ok:
	case limit >= maxRecords/2:
		delete(p.limits, b.place)
	default:
		p.limits[b.place] = 2 * limit
	}
}
