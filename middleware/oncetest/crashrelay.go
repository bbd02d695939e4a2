package oncetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/watermill-once/outbox"
)

// crashRelay empties the outboxes, by a relay that dies when the broker has taken its first message, and by another one after it: all
// must leave.
func (p *proof) crashRelay() {
	p.t.Helper()
	f := p.run(true, func(r *run) *finding {
		for _, event := range p.all() {
			if f := r.until(event, false); f != nil {
				return f
			}
		}
		before := r.look()
		for _, topic := range r.outboxes() {
			r.relay(topic, true)
			r.relay(topic, false)
			if f := r.stuck(topic); f != nil {
				return f
			}
		}
		if changes := p.compareSent(before, r.look(), true); len(changes) > 0 {
			return &finding{kind: "relay", changes: changes, what: "a relay that died when the broker had taken a message, and another after it, sent other messages than the outbox held"}
		}
		return nil
	})
	if f != nil {
		p.report(f.what, f, p.deliveries(p.all()))
	}
}

// outboxes are those that a relay can empty, by their topics.
func (r *run) outboxes() (topics []string) {
	r.t.Helper()
	for _, t := range r.catalog() {
		if t.outbox && t.has("topic", "key", "next_attempt_at", "sent_at") {
			topics = append(topics, strings.TrimPrefix(t.name, "watermill_"))
		}
	}
	return topics
}

// relay runs a relay until it has sent all it can, or until it dies at its first message.
func (r *run) relay(topic string, dies bool) {
	r.t.Helper()
	pool := newPool(r.t, r.db.URL)
	defer pool.Close()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	to := &relayBroker{broker: r.broker}
	if dies {
		to.die = func() {
			r.broker.setDown(true)
			r.wire.proxy.Down(true)
			r.wire.proxy.Cut()
			cancel()
		}
	}
	relay, err := outbox.NewRelay(pool, to, outbox.RelayConfig{
		Topic: topic, PollInterval: 10 * time.Millisecond, CloseTimeout: time.Second, MaxAttempts: 1,
	}, nil)
	check(r.t, err)
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	poll(r.proof.config.Timeout, func() bool { return ctx.Err() != nil || r.waiting(topic) == 0 })
	cancel()
	check(r.t, <-ended)
	if dies {
		r.die()
	}
}

// waiting counts what a relay has yet to send.
func (r *run) waiting(topic string) (n int) {
	r.t.Helper()
	query := "select count(*) from " + outbox.Config{Topic: topic}.Table() + " where sent_at is null and parked_at is null"
	check(r.t, r.observe.QueryRow(r.t.Context(), query).Scan(&n))
	return n
}

// stuck finds what no relay will send.
func (r *run) stuck(topic string) *finding {
	r.t.Helper()
	rows, err := r.observe.Query(r.t.Context(),
		"select format('UUID %L for topic %L: %s', uuid, topic, last_error) from "+outbox.Config{Topic: topic}.Table()+" where sent_at is null")
	check(r.t, err)
	left, err := pgx.CollectRows(rows, pgx.RowTo[string])
	check(r.t, err)
	if len(left) == 0 {
		return nil
	}
	return &finding{kind: "relay", changes: left, what: fmt.Sprintf("a relay could not send what is in the outbox %q", topic)}
}

// relayBroker is the broker as a relay knows it.
type relayBroker struct {
	*broker
	die  func() // nil: it lives on
	once sync.Once
}

func (b *relayBroker) Publish(topic string, msgs ...*message.Message) error {
	msgs = slices.Clone(msgs)
	for i, msg := range msgs {
		msgs[i] = msg.Copy()
		delete(msgs[i].Metadata, outbox.SequenceKey) // the relay's own
	}
	err := b.broker.Publish(topic, msgs...)
	if b.die != nil {
		b.once.Do(b.die)
	}
	return err
}
