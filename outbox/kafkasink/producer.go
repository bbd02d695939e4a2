package kafkasink

import (
	"errors"
	"math"
	"time"

	"github.com/IBM/sarama"
)

// producer sends calls one after the other, and is used by one goroutine at a time. It decides what is sent, when, and what
// an answer means; cluster does it.
type producer struct {
	cluster  cluster
	config   *sarama.Config
	maxBytes int
	closing  <-chan struct{}

	identity *identity // nil: a new one is needed
	topics   map[string]*topic
	limits   map[place]int
	// down is what has failed when it was last tried. It is tried once, not again and again: others wait for that.
	down map[place]bool
}

// topicDown is the partition that stands for a topic which has none.
const topicDown = -1

func newProducer(c cluster, config *sarama.Config, closing <-chan struct{}) *producer {
	return &producer{
		cluster:  c,
		config:   config,
		maxBytes: config.Producer.MaxMessageBytes,
		closing:  closing,
		limits:   make(map[place]int),
		down:     make(map[place]bool),
	}
}

// send settles all items of the calls, in rounds: what is next in a round follows from the answers to the last one.
func (p *producer) send(calls []*call) {
	var open []*item
	for _, c := range calls {
		for i := range c.items {
			open = append(open, &c.items[i])
		}
	}
	p.lookUp(open)
	for round := 1; len(open) > 0; round++ {
		if p.isClosing() {
			for _, it := range open {
				it.fail(ErrClosed, false)
			}
			return
		}
		p.deliver(p.plan(round, open))
		open = unsettled(open)
	}
}

func unsettled(items []*item) []*item {
	var open []*item
	for _, it := range items {
		if !it.settled {
			open = append(open, it)
		}
	}
	return open
}

// lookUp gets the partitions of all topics.
func (p *producer) lookUp(items []*item) {
	p.topics = make(map[string]*topic)
	var missing []string
	for _, it := range items {
		if it.fault == nil && p.topics[it.topic] == nil {
			p.topics[it.topic] = &topic{construct: p.config.Producer.Partitioner}
			missing = append(missing, it.topic)
		}
	}
	for try := 0; ; try++ {
		var again []string
		var unreachable error
		for _, name := range missing {
			t := p.topics[name]
			if t.err = unreachable; t.err == nil {
				t.partitions, t.err = p.cluster.partitions(name)
			}
			var code sarama.KError
			if t.err != nil && !errors.As(t.err, &code) {
				unreachable = t.err // Kafka as a whole: not to be found out for each topic
			}
			where := place{name, topicDown}
			switch verdictOn(t.err) {
			case taken:
				delete(p.down, where)
			case later:
				if !p.down[where] {
					again = append(again, name)
				}
			}
		}
		missing = again
		if len(missing) == 0 {
			return
		}
		if try == p.config.Producer.Retry.Max || !p.pause(try) {
			for _, name := range missing {
				p.down[place{name, topicDown}] = true
			}
			return
		}
	}
}

// deliver sends the batches until each is taken, or settled otherwise, or to be divided in the next round.
func (p *producer) deliver(batches []*batch) {
	var down []*batch
	for _, b := range batches {
		if p.down[b.place] {
			down = append(down, b)
		}
	}
	if len(down) > 0 {
		p.cluster.refresh(down) // they may have moved
	}
	for try := 0; len(batches) > 0; try++ {
		p.attempt(batches)
		var again []*batch
		for _, b := range batches {
			if !p.judge(b, try) {
				again = append(again, b)
			}
		}
		batches = again
		if len(batches) > 0 {
			p.pause(try)
			p.cluster.refresh(batches)
		}
	}
}

func (p *producer) attempt(batches []*batch) {
	var ready []*batch
	var nameless error // not to be found out for each batch
	for _, b := range batches {
		if b.identity == nil && nameless == nil {
			nameless = p.identify(b)
		}
		if b.identity == nil {
			b.err = nameless
			continue
		}
		ready = append(ready, b)
	}
	if len(ready) > 0 {
		p.cluster.produce(ready)
	}
}

// identify gives a batch an identity and the next number.
func (p *producer) identify(b *batch) error {
	if p.identity != nil && int(p.identity.next[b.place])+len(b.items) > math.MaxInt32 {
		p.identity = nil
	}
	if p.identity == nil {
		identity, err := p.cluster.identify()
		if err != nil {
			return err
		}
		p.identity = identity
	}
	b.identity = p.identity
	b.sequence = b.identity.next[b.place]
	return nil
}

// judge tells whether the batch is done with, in this round.
func (p *producer) judge(b *batch, try int) bool {
	switch v := verdictOn(b.err); v {
	case taken:
		b.identity.next[b.place] = b.sequence + int32(len(b.items))
		delete(p.down, b.place)
		p.widen(b)
		for _, it := range b.items {
			it.settle(nil)
		}
		return true

	case refused:
		p.retireIf(b.uncertain, b)
		if len(b.items) > 1 {
			p.narrow(b)
			return true
		}
		b.items[0].fail(b.err, true)
		return true

	case later, anew:
		b.uncertain = true
		if v == anew {
			p.retireIf(true, b)
			b.identity = nil
		}
		if !p.down[b.place] && try < p.config.Producer.Retry.Max && b.wanted() && !p.isClosing() {
			return false
		}
		p.down[b.place] = true
		fallthrough

	default:
		p.retireIf(true, b)
		for _, it := range b.items {
			it.fail(b.err, v == hopeless)
		}
		return true
	}
}

// retireIf gives up an identity whose next number is not known.
func (p *producer) retireIf(uncertain bool, b *batch) {
	if uncertain && p.identity == b.identity {
		p.identity = nil
	}
}

// pause waits before the next attempt, and tells whether there is to be one.
func (p *producer) pause(try int) bool {
	retry := &p.config.Producer.Retry
	delay := retry.Backoff
	if retry.BackoffFunc != nil {
		delay = retry.BackoffFunc(try, retry.Max)
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.closing:
		return false
	}
}

func (p *producer) isClosing() bool {
	select {
	case <-p.closing:
		return true
	default:
		return false
	}
}
