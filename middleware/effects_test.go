package middleware_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/outbox"
)

type order struct {
	ID     string
	Amount int
	Key    string `json:",omitempty"` // of the charge
}

func (o order) message(uuid string) *message.Message {
	payload, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return message.NewMessage(uuid, payload)
}

type shop struct {
	pool    *pgxpool.Pool
	outbox  *outbox.Publisher
	effects *dedupe.Effects
	charge  func(ctx context.Context, idempotencyKey string, o order) (chargeID string, err error)
	mail    func(ctx context.Context, idempotencyKey string, o order) error
}

// docs/effects.md shows the functions between these lines.

// worker begins
// placeOrder is behind once.Transactional, with an outbox: the order and the message that asks for its charge commit together.
func (s *shop) placeOrder(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return nil, once.Permanent(err)
	}
	uuid, _ := once.DeriveUUID(ctx, "charge") // the same if the order is ever placed a second time, after a Forget
	err := once.Queue(ctx, `insert into orders (id) values ($1) on conflict do nothing`, o.ID)
	return []*message.Message{message.NewMessage(uuid, msg.Payload)}, err
}

// chargeCard is a plain handler of those messages.
func (s *shop) chargeCard(msg *message.Message) error {
	ctx := msg.Context()
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return once.Permanent(err)
	}
	key, err := once.IdempotencyKeyFor("charger", msg.UUID, "charge")
	if err != nil {
		return err
	}
	id, err := dedupe.Do(ctx, s.effects, key, o, func(ctx context.Context, idempotencyKey string) (string, error) {
		return s.charge(ctx, idempotencyKey, o)
	})
	if err != nil {
		return err
	}
	// After a crash before this, the redelivery gets the stored outcome and comes here again: set, do not add.
	_, err = s.pool.Exec(ctx, `update orders set status = 'paid', charge = $2 where id = $1`, o.ID, id)
	return err
}

// worker ends

// unknown begins
// chargeOrMark is chargeCard under Refuse, for messages that carry the key, which stands beside the order too.
func (s *shop) chargeOrMark(msg *message.Message) error {
	ctx := msg.Context()
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return once.Permanent(err)
	}
	status := "paid"
	id, err := dedupe.Do(ctx, s.effects, o.Key, o, func(ctx context.Context, _ string) (string, error) {
		return s.charge(ctx, "", o) // no key for those who know none
	})
	switch {
	case errors.Is(err, dedupe.ErrUnknown):
		status = "unknown" // no retry will tell: acked, and a person looks at the order
	case err != nil:
		return err
	}
	_, err = s.pool.Exec(ctx, `update orders set status = $2, charge = $3 where id = $1 and status <> 'paid'`, o.ID, status, id)
	return err
}

// resolve is for the person who has found the charge of an order: what is known, the order, and the message that goes on from
// there commit together.
func (s *shop) resolve(ctx context.Context, o order, chargeID string) error {
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := s.effects.ResolveTx(ctx, tx, o.Key, chargeID); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update orders set status = 'placed' where id = $1`, o.ID); err != nil {
			return err
		}
		return s.outbox.PublishTx(ctx, tx, "charges", o.message(watermill.NewUUID()))
	})
	s.outbox.Wake()
	return err
}

// unknown ends

// malformed begins
// mailReceipt is behind once.Leased.
func (s *shop) mailReceipt(msg *message.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return dedupe.NotDone(once.Permanent(err))
	}
	key, _ := once.IdempotencyKey(msg.Context(), "mail")
	return s.mail(msg.Context(), key, o)
}

// malformed ends

func TestEffectsDocShowsThisCode(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("effects_test.go")
	require.NoError(t, err)
	doc, err := os.ReadFile("../docs/effects.md")
	require.NoError(t, err)
	for _, name := range []string{"worker", "unknown", "malformed"} {
		_, code, _ := strings.Cut(string(source), "// "+name+" begins\n")
		code, _, _ = strings.Cut(code, "\n// "+name+" ends\n")
		require.Contains(t, string(doc), "```go\n"+code+"```\n")
	}
}

func newShop(t *testing.T, config dedupe.EffectsConfig) (*shop, *world) {
	t.Helper()
	w := newWorld(t, "pgx")
	_, err := w.pool.Exec(t.Context(), `create table orders (
		id text primary key, charge_key text, status text not null default 'placed', charge text not null default '')`)
	require.NoError(t, err)
	effects, err := dedupe.NewEffects(w.pool, config)
	require.NoError(t, err)
	return &shop{pool: w.pool, outbox: newPublisher(t), effects: effects}, w
}

// sent takes the oldest message out of the outbox, as a relay does.
func (w *world) sent() *message.Message {
	w.t.Helper()
	var (
		uuid    string
		payload []byte
	)
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), `delete from watermill_outbox
		where "offset" = (select min("offset") from watermill_outbox) returning uuid, payload`).Scan(&uuid, &payload))
	msg := message.NewMessage(uuid, payload)
	msg.SetContext(w.t.Context())
	return msg
}

func (w *world) requireOrder(id, status, charge string) {
	w.t.Helper()
	require.Equal(w.t, 1, w.count(`select count(*) from orders where (id, status, charge) = ($1, $2, $3)`, id, status, charge))
}

func TestEffectsDocChargesOnce(t *testing.T) {
	t.Parallel()
	s, w := newShop(t, dedupe.EffectsConfig{})
	keys := map[string]int{}
	s.charge = func(_ context.Context, key string, o order) (string, error) {
		if keys[key]++; keys[key] == 1 {
			return "", errors.New("timeout")
		}
		return "charge of " + o.ID, nil
	}
	place := w.route(once.Config{Outbox: s.outbox}, s.placeOrder)
	for range 2 {
		require.NoError(t, place(order{ID: "o1", Amount: 100}.message("event")))
	}
	require.Equal(t, 1, w.outbox())
	msg := w.sent()
	require.ErrorContains(t, s.chargeCard(msg), "timeout")
	for range 2 {
		require.NoError(t, s.chargeCard(msg))
		w.requireOrder("o1", "paid", "charge of o1")
	}
	require.Len(t, keys, 1)
	for _, calls := range keys {
		require.Equal(t, 2, calls, "the one that timed out, and the one that went well")
	}
}

func TestEffectsDocMarksAndResolves(t *testing.T) {
	t.Parallel()
	s, w := newShop(t, dedupe.EffectsConfig{OnUnknown: dedupe.Refuse})
	calls := 0
	s.charge = func(context.Context, string, order) (string, error) {
		calls++
		return "", errors.New("timeout")
	}
	o := order{ID: "o1", Amount: 100, Key: "charge of o1"}
	_, err := w.pool.Exec(t.Context(), `insert into orders (id, charge_key) values ($1, $2)`, o.ID, o.Key)
	require.NoError(t, err)
	msg := o.message("event")
	msg.SetContext(t.Context())
	require.ErrorContains(t, s.chargeOrMark(msg), "timeout")
	require.NoError(t, s.chargeOrMark(msg))
	w.requireOrder("o1", "unknown", "")

	require.NoError(t, s.resolve(t.Context(), o, "ch_1"))
	w.requireOrder("o1", "placed", "")
	require.NoError(t, s.chargeOrMark(w.sent()))
	w.requireOrder("o1", "paid", "ch_1")
	require.Equal(t, 1, calls)
	require.ErrorIs(t, s.resolve(t.Context(), o, "ch_2"), dedupe.ErrNotUnknown)
	require.Zero(t, w.outbox())
}

func TestEffectsDocFreesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	s, w := newShop(t, dedupe.EffectsConfig{})
	var mailed order
	s.mail = func(_ context.Context, key string, o order) error {
		require.Len(t, key, 64)
		mailed = o
		return nil
	}
	config := once.LeasedConfig{Effects: dedupe.EffectsConfig{OnUnknown: dedupe.Refuse}}
	h := w.lease(config, func(msg *message.Message) ([]*message.Message, error) { return nil, s.mailReceipt(msg) })
	err := deliver(t, h, message.NewMessage("event", []byte(`{`)))
	require.True(t, once.IsPermanent(err))
	require.True(t, once.ShouldPoison(err))
	require.Equal(t, "free", w.effectState("event"))

	o := order{ID: "o1", Amount: 100}
	require.NoError(t, deliver(t, h, o.message("event")), "replayed, to a better handler or as a better message")
	require.Equal(t, o, mailed)
	require.Equal(t, "done", w.effectState("event"))
}
