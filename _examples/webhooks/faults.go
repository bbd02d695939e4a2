package main

import (
	"errors"
	"hash/fnv"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	once "github.com/watermill-once/watermill-once/middleware"
)

var errAfterWork = errors.New("failed after the work was done")

// faults are what goes wrong in the consumers on purpose. A real service has no such thing.
type faults struct {
	failed  sync.Map // the events that have failed, once for each consumer
	arrived atomic.Int64
}

// refuseSome answers every twentieth delivery with 503, as what stands before a service does while that is being replaced. The
// delivery comes again.
func (f *faults) refuseSome(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.arrived.Add(1)%20 == 0 {
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// failSome fails one event in fifty when its handler has done all its work: half of them by an error, half by a panic. All of
// that work must go, and the next attempt must not be taken for a duplicate. It belongs inside Transactional.
func (f *faults) failSome(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		if err != nil {
			return nil, err
		}
		key, _ := once.IdempotencyKey(msg.Context(), "fail") // another one for each consumer and event
		hash := fnv.New32a()
		hash.Write([]byte(key))
		chosen := hash.Sum32() % 100
		if chosen > 1 {
			return produced, nil
		}
		if _, again := f.failed.LoadOrStore(key, true); again {
			return produced, nil
		}
		if chosen == 0 {
			panic(errAfterWork)
		}
		return nil, errAfterWork
	}
}

// doubleSome sends one message in twenty twice, as a relay does that was killed when it had sent and not yet deleted it.
func (f *faults) doubleSome(publisher message.Publisher) message.Publisher {
	return &doubler{Publisher: publisher}
}

type doubler struct {
	message.Publisher
	sent atomic.Int64
}

func (d *doubler) Publish(topic string, messages ...*message.Message) error {
	if err := d.Publisher.Publish(topic, messages...); err != nil {
		return err
	}
	if d.sent.Add(1)%20 > 0 {
		return nil
	}
	copies := make([]*message.Message, len(messages))
	for i, msg := range messages {
		copies[i] = msg.Copy()
	}
	return d.Publisher.Publish(topic, copies...)
}
