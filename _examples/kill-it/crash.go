package main

import (
	"os"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
)

// The crash points, in the order in which a message meets them.
const (
	beforeClaim  = "before the claim"
	inHandler    = "in the handler"
	beforeCommit = "before COMMIT"
	afterCommit  = "after COMMIT, before the ack"
	afterPublish = "after the relay's publish, before its delete"
)

var crashPoints = []string{beforeClaim, inHandler, beforeCommit, afterCommit, afterPublish}

// crashAfter is how often a process passes its crash point. It is killed when it gets there once more.
const crashAfter = 4

// trap kills the process at one of the points. The zero value never does.
type trap struct {
	point  string
	passed atomic.Int64
}

// reach does not return where the process is to die. It is kill -9: nothing is closed, flushed or rolled back by us.
func (t *trap) reach(point string) {
	if point != t.point || t.passed.Add(1) <= crashAfter {
		return
	}
	if self, err := os.FindProcess(os.Getpid()); err != nil || self.Kill() != nil {
		panic("cannot kill myself")
	}
	select {} // until the signal is here
}

// before belongs outside the middleware, where it has not begun.
func (t *trap) before(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		t.reach(beforeClaim)
		return h(msg)
	}
}

// after belongs inside the middleware, where the handler is done.
func (t *trap) after(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		t.reach(beforeCommit)
		return produced, err
	}
}

// trappedPublisher is the broker as the relay has it.
type trappedPublisher struct {
	message.Publisher
	trap *trap
}

func (p trappedPublisher) Publish(topic string, messages ...*message.Message) error {
	err := p.Publisher.Publish(topic, messages...)
	p.trap.reach(afterPublish)
	return err
}
