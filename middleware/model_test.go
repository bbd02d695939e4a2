package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
)

// event is what the producer of a model's run has made once; every delivery of it is the same.
type event struct {
	id, entity, payload string
	version             int64
}

// way is what becomes of a delivery that reaches the handler.
type way string

const (
	succeeds way = "succeeds"
	fails    way = "fails"
	panics   way = "panics"
	swallows way = "swallows" // a failed statement's error
	dies     way = "dies"     // its connection ends in mid-handler, as the process would
)

// model is what the tables must hold. It knows nothing of transactions: a delivery applies whole or not at all.
type model struct {
	claims  map[string]string // event id: payload
	applied map[string]event  // by entity: the last one
	blank   map[string]bool   // by entity: its last event was forgotten
	effects []string          // event ids, in the order applied
}

// deliver gives what a delivery must come to, and keeps what it must leave.
func (m *model) deliver(e event, w way) (kind once.Kind, mismatch bool) {
	if payload, ok := m.claims[e.id]; ok {
		if payload != e.payload {
			return once.Failed, true
		}
		return once.Duplicate, false
	}
	last, known := m.applied[e.entity]
	if known && (e.version < last.version || e.version == last.version && !m.blank[e.entity]) {
		m.claims[e.id] = e.payload
		return once.Stale, false
	}
	if w != succeeds {
		return once.Failed, false
	}
	m.claims[e.id] = e.payload
	m.applied[e.entity], m.blank[e.entity] = e, false
	m.effects = append(m.effects, e.id)
	return once.Fresh, false
}

func (m *model) forget(id string) {
	delete(m.claims, id)
	for entity, last := range m.applied {
		if last.id == id {
			m.blank[entity] = true
		}
	}
}

// The middleware against the model, in random sequences of deliveries, redeliveries, old events after new ones, two events
// under one id, failures of every kind, crashes, sweeps and deliberate second runs.
func TestModel(t *testing.T) {
	t.Parallel()
	eachDB(t, func(t *testing.T, w *world) {
		_, err := w.pool.Exec(t.Context(), `create table applied (n bigserial, consumer text, event_id text, version bigint)`)
		require.NoError(t, err)
		runs := 0
		rapid.Check(t, func(r *rapid.T) {
			runs++
			c := &checked{world: w, r: r, consumer: fmt.Sprint("model-", runs), model: model{
				claims: map[string]string{}, applied: map[string]event{}, blank: map[string]bool{},
			}}
			c.handle = c.consume()
			r.Repeat(map[string]func(*rapid.T){
				"deliver": func(r *rapid.T) {
					c.deliver(draw(r), rapid.SampledFrom([]way{succeeds, succeeds, succeeds, fails, panics, swallows, dies}).Draw(r, "way"))
				},
				"sweep": func(r *rapid.T) {
					e := draw(r)
					c.exec(`delete from watermill_processed_events where consumer = $1 and event_id = $2`, c.consumer, e.id)
					delete(c.model.claims, e.id)
				},
				"forget": func(r *rapid.T) {
					e := draw(r)
					c.forget(e.id)
					c.model.forget(e.id)
				},
				"": func(*rapid.T) { c.compare() },
			})
		})
		w.idle()
	})
}

// draw picks one of a few events, so that ids, entities and versions meet often.
func draw(r *rapid.T) event {
	n := rapid.IntRange(0, 11).Draw(r, "event")
	return event{
		id:      fmt.Sprint("e", n%8), // four ids are used for two events each
		entity:  []string{"card", "order"}[n%2],
		version: int64(n/2%4 + 1),
		payload: fmt.Sprintf(`{"n":%d}`, n),
	}
}

// checked is one run: a consumer of its own in the shared tables, beside its model.
type checked struct {
	*world
	r        *rapid.T
	consumer string
	model    model
	way      way // of the delivery under way
	outcome  once.Outcome
	handle   message.HandlerFunc
}

func (c *checked) consume() message.HandlerFunc {
	publisher, err := outbox.NewPublisher(outbox.Config{})
	require.NoError(c.r, err)
	mw, err := once.Transactional(c.db, once.Config{
		Consumer:  c.consumer,
		Dedupe:    dedupe.Config{Fingerprint: true},
		Ordering:  byMetadata,
		Outbox:    publisher,
		OnOutcome: func(_ context.Context, o once.Outcome) { c.outcome = o },
	})
	require.NoError(c.r, err)
	return mw(func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		if err := exec(ctx, `insert into applied (consumer, event_id, version) values ($1, $2, $3)`,
			c.consumer, once.EventID(ctx), msg.Metadata.Get("version")); err != nil {
			return nil, err
		}
		if err := publisher.PublishContext(ctx, c.consumer, message.NewMessage(once.EventID(ctx), nil)); err != nil {
			return nil, err
		}
		switch c.way {
		case fails:
			return nil, errors.New("the handler fails")
		case panics:
			panic("the handler panics")
		case swallows:
			_ = exec(ctx, `select 1/0`)
		case dies:
			_ = exec(ctx, `select pg_terminate_backend(pg_backend_pid())`)
		}
		return nil, nil
	})
}

func (c *checked) deliver(e event, w way) {
	msg := message.NewMessage(e.id, []byte(e.payload))
	msg.Metadata.Set("entity", e.entity)
	msg.Metadata.Set("version", strconv.FormatInt(e.version, 10))

	c.way, c.outcome = w, once.Outcome{}
	panicked := true
	err := func() (err error) {
		defer func() {
			if panicked {
				err = fmt.Errorf("panic: %v", recover())
			}
		}()
		_, err = c.handle(msg)
		panicked = false
		return err
	}()

	kind, mismatch := c.model.deliver(e, w)
	require.Equal(c.r, kind, c.outcome.Kind, "%+v %s: %v", e, w, err)
	require.Equal(c.r, kind == once.Failed, err != nil, "%v", err)
	require.Equal(c.r, mismatch, errors.Is(err, dedupe.ErrFingerprintMismatch), "%v", err)
	require.Equal(c.r, kind == once.Failed && !mismatch && w == panics, panicked)
}

func (c *checked) forget(id string) {
	require.NoError(c.r, pgx.BeginFunc(context.Background(), c.pool, func(tx pgx.Tx) error {
		_, err := once.Config{Ordering: byMetadata}.Forget(context.Background(), tx, c.consumer, id)
		return err
	}))
}

func (c *checked) exec(query string, args ...any) {
	_, err := c.pool.Exec(context.Background(), query, args...)
	require.NoError(c.r, err)
}

// compare looks at all tables.
func (c *checked) compare() {
	var claims, effects, left []string
	var last map[string]int64
	require.NoError(c.r, c.pool.QueryRow(context.Background(), `select
		(select array_agg(event_id) from watermill_processed_events where consumer = $1),
		(select array_agg(event_id order by n) from applied where consumer = $1),
		(select array_agg(uuid order by "offset") from watermill_outbox where topic = $1),
		(select jsonb_object_agg(entity, version) from watermill_entity_versions where consumer = $1)`,
		c.consumer).Scan(&claims, &effects, &left, &last))

	var ids []string
	for id := range c.model.claims {
		ids = append(ids, id)
	}
	require.ElementsMatch(c.r, ids, claims)
	require.Equal(c.r, c.model.effects, effects)
	require.Equal(c.r, c.model.effects, left, "a message for each effect, in order")
	require.Len(c.r, last, len(c.model.applied))
	for entity, e := range c.model.applied {
		require.Equal(c.r, e.version, last[entity], entity)
	}
}
