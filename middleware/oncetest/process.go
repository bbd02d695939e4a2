package oncetest

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// process is one start of the user's handler, in a Router of its own: with the context, the publishing and the acks that a handler
// has in production.
type process struct {
	router   *message.Router
	messages chan *message.Message
	ended    chan error
}

// The names that a handler finds on its context.
const (
	handlerName  = "oncetest"
	topicIn      = "events"
	topicOut     = "produced"
	closeTimeout = 10 * time.Second
)

func startProcess(t testing.TB, handler message.HandlerFunc, out message.Publisher) *process {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: closeTimeout}, nil)
	check(t, err)
	p := &process{router: router, messages: make(chan *message.Message), ended: make(chan error, 1)}
	router.AddHandler(handlerName, topicIn, subscriber{p.messages}, topicOut, out, observe(handler))
	go func() { p.ended <- router.Run(context.Background()) }()
	<-router.Running()
	return p
}

func (p *process) stop(t testing.TB) {
	t.Helper()
	if err := p.router.Close(); err != nil {
		t.Errorf("oncetest: %v", err)
		return
	}
	if err := <-p.ended; err != nil {
		t.Errorf("oncetest: %v", err)
	}
}

// subscriber hands over what a run delivers.
type subscriber struct{ messages chan *message.Message }

func (s subscriber) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return s.messages, nil
}

func (s subscriber) Close() error {
	close(s.messages)
	return nil
}

// visit is one delivery as its handler finds it.
type visit struct {
	unpublished bool        // the process dies when the handler has returned, before its messages are published
	done        chan result // gets what became of it
}

// result is what became of a delivery.
type result struct {
	err     error
	misuse  string // what no handler may do
	expired bool   // it has not returned in time
	acked   bool   // what the broker has heard
}

type visitKey struct{}

// observe sees a handler return, from outside all of its middleware.
func observe(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (produced []*message.Message, err error) {
		v := msg.Context().Value(visitKey{}).(*visit)
		var res result
		returned := false
		defer func() {
			switch p := recover(); {
			case p != nil:
				err = fmt.Errorf("the handler panicked: %v%s", p, origin(debug.Stack()))
				res.misuse = err.Error()
			case !returned:
				res.misuse = "the handler ended its goroutine: by a require of a test, or runtime.Goexit"
			}
			select {
			case <-msg.Acked():
				res.misuse = "the handler acked its message by itself: if the process dies before the work is committed, the event is lost"
			default:
			}
			if res.err = err; err == nil && v.unpublished {
				err = errDied
			}
			v.done <- res
		}()
		produced, err = next(msg)
		returned = true
		return produced, err
	}
}

// origin is the line that panicked.
func origin(stack []byte) string {
	_, below, ok := strings.Cut(string(stack), "\npanic(")
	if !ok {
		return ""
	}
	lines := strings.Split(below, "\n")
	if len(lines) < 4 {
		return ""
	}
	place, _, _ := strings.Cut(strings.TrimSpace(lines[3]), " +0x")
	return " at " + place
}

// deliver hands a message over and waits for the Router's answer to the broker.
func (p *process) deliver(ctx context.Context, msg *message.Message, v visit, timeout time.Duration) result {
	v.done = make(chan result, 1)
	msg.SetContext(context.WithValue(ctx, visitKey{}, &v))
	expired := time.NewTimer(timeout)
	defer expired.Stop()

	p.messages <- msg
	var res result
	select {
	case res = <-v.done:
	case <-expired.C:
		return result{misuse: fmt.Sprintf("the handler did not return within %v", timeout), expired: true}
	}
	if res.err == nil && res.misuse != "" {
		return res // there may be no answer
	}
	select {
	case <-msg.Acked():
		res.acked = true
	case <-msg.Nacked():
	}
	return res
}
