package main

import (
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// repeater is a bad day for the relay: with each tenth message an old one goes out again, as by a relay that was stopped before
// it had deleted what it had sent. A real service has no such thing, and gives its relay the broker's Publisher.
type repeater struct {
	message.Publisher

	mu     sync.Mutex
	taken  []sent
	copies int
}

type sent struct {
	topic string
	msg   *message.Message
}

func (r *repeater) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		if err := r.Publisher.Publish(topic, msg); err != nil {
			return err
		}
		old, due := r.keep(sent{topic, msg.Copy()})
		if !due {
			continue
		}
		if err := r.Publisher.Publish(old.topic, old.msg); err != nil {
			return err
		}
	}
	return nil
}

// keep gives an old message when it is time for one.
func (r *repeater) keep(s sent) (old sent, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = append(r.taken, s)
	if len(r.taken)%10 > 0 {
		return sent{}, false
	}
	r.copies++
	old = r.taken[len(r.taken)/2]
	return sent{old.topic, old.msg.Copy()}, true
}

// numbers are how many messages the broker has, and how many of them are copies.
func (r *repeater) numbers() (messages, copies int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.taken) + r.copies, r.copies
}
