package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/watermill-once/internal/attempt"
)

// ErrNoTransaction is returned where there is no open transaction to write in: none on the context, or one that has
// ended.
var ErrNoTransaction = errors.New("outbox: no open transaction")

// Publisher writes messages into an outbox, inside a transaction, instead of sending them to a broker. It may be used
// by several goroutines.
type Publisher struct {
	config Config
	rows   rows
	wake   wake
}

// NewPublisher reports all faults of the config at once.
func NewPublisher(config Config) (*Publisher, error) {
	config.setDefaults()
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("outbox: config: %w", err)
	}
	p := &Publisher{config: config}
	p.rows = newRows(config)
	p.rows.wake = p.wake.signal
	return p, nil
}

// Table is the name of the outbox's table, quoted for use in SQL.
func (p *Publisher) Table() string { return p.config.Table() }

func newRows(config Config) rows {
	return rows{table: config.Table(), key: config.Key, locks: newKeyLocks(config.Topic)}
}

// Publish adds messages to the transaction that is on their context: that of the handler which runs for the message
// they belong to. They are written with its COMMIT, and vanish with its rollback. Set the context of each
// (msg.SetContext), or use PublishContext.
//
// A message takes over correlation_id and the trace (traceparent, tracestate, baggage) of the message that is being
// handled, where it has none of its own; one with a traceparent of its own keeps its whole trace.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	a, err := attemptOf(msgs)
	if err != nil {
		return fmt.Errorf("%w for topic %.64q", err, topic)
	}
	return p.keep(a, topic, msgs)
}

// PublishContext is Publish with the context of the caller in place of the messages' own.
func (p *Publisher) PublishContext(ctx context.Context, topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	a, ok := attempt.FromContext(ctx)
	if !ok {
		return fmt.Errorf("%w on the context, for topic %.64q", ErrNoTransaction, topic)
	}
	return p.keep(a, topic, msgs)
}

// PublishTx writes messages in tx. On the transaction of a handler it does what PublishContext does. In any other it
// writes at once, and locks the messages' keys until tx ends, in one round trip: so call it last, and once, with all
// messages. Of two transactions that call it twice for two keys, in opposite order, PostgreSQL ends one (SQLSTATE
// 40P01).
//
// Once tx has committed, Wake spares the messages the wait for the relay's next poll.
func (p *Publisher) PublishTx(ctx context.Context, tx pgx.Tx, topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if tx == nil {
		return fmt.Errorf("%w given for topic %.64q", ErrNoTransaction, topic)
	}
	if carrier, ok := tx.(attempt.Carrier); ok {
		return p.keep(carrier.Attempt(), topic, msgs)
	}
	rows, err := p.rowsOf(topic, msgs)
	if err != nil {
		return err
	}
	return failed(topic, execPgx(ctx, tx, attempt.Insert(rows)))
}

// PublishSQLTx is PublishTx for database/sql. On the handler's own transaction it needs the handler's context to know
// it, and else writes at once.
func (p *Publisher) PublishSQLTx(ctx context.Context, tx *sql.Tx, topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if tx == nil {
		return fmt.Errorf("%w given for topic %.64q", ErrNoTransaction, topic)
	}
	if a, ok := attempt.FromContext(ctx); ok && a.Handed(tx) {
		return p.keep(a, topic, msgs)
	}
	rows, err := p.rowsOf(topic, msgs)
	if err != nil {
		return err
	}
	for _, s := range attempt.Insert(rows) {
		if _, err := tx.ExecContext(ctx, s.SQL, s.Args...); err != nil {
			return failed(topic, err)
		}
	}
	return nil
}

// Wake tells the relays of this process (RelayConfig.Wake) that there is something to send: call it after the COMMIT of
// a transaction that was given to PublishTx or PublishSQLTx. What handlers publish wakes them by itself. It never
// blocks.
func (p *Publisher) Wake() { p.wake.signal() }

// Schema is the SQL that creates the outbox's table.
func (p *Publisher) Schema() string { return p.config.Schema() }

// Close does nothing: a Publisher holds nothing. It makes it a message.Publisher.
func (p *Publisher) Close() error { return nil }

// attemptOf finds the one transaction that all messages belong to. Messages of several could not be written all or
// none.
func attemptOf(msgs []*message.Message) (*attempt.Attempt, error) {
	var all *attempt.Attempt
	for _, msg := range msgs {
		a, ok := attempt.FromContext(msg.Context())
		if !ok {
			return nil, fmt.Errorf("%w on the context of message %.64q", ErrNoTransaction, msg.UUID)
		}
		if all != nil && all != a {
			return nil, fmt.Errorf("outbox: message %.64q has another transaction on its context than those before it", msg.UUID)
		}
		all = a
	}
	return all, nil
}

// keep leaves the rows with the attempt until its COMMIT.
func (p *Publisher) keep(a *attempt.Attempt, topic string, msgs []*message.Message) error {
	if len(msgs) == 1 { // a slice on the stack
		row, err := p.rows.of(topic, msgs[0], a.Headers)
		if err != nil {
			return err
		}
		return failed(topic, a.Publish(row))
	}
	rows := make([]attempt.Row, len(msgs))
	for i, msg := range msgs {
		var err error
		if rows[i], err = p.rows.of(topic, msg, a.Headers); err != nil {
			return err
		}
	}
	return failed(topic, a.Publish(rows...))
}

func (p *Publisher) rowsOf(topic string, msgs []*message.Message) ([]attempt.Row, error) {
	rows := make([]attempt.Row, len(msgs))
	for i, msg := range msgs {
		var err error
		if rows[i], err = p.rows.of(topic, msg, nil); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func execPgx(ctx context.Context, tx pgx.Tx, statements []attempt.Statement) error {
	if len(statements) == 1 {
		_, err := tx.Exec(ctx, statements[0].SQL, statements[0].Args...)
		return err
	}
	var batch pgx.Batch
	for _, s := range statements {
		batch.Queue(s.SQL, s.Args...)
	}
	return tx.SendBatch(ctx, &batch).Close()
}

func failed(topic string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, attempt.ErrEnded), errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%w for topic %.64q: %w", ErrNoTransaction, topic, err)
	}
	return fmt.Errorf("outbox: write for topic %.64q: %w", topic, err)
}
