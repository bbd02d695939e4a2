package middleware

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/watermill-once/watermill-once/internal/attempt"
)

// pgxTx is the handler's transaction, or a savepoint of it. It refuses Commit and Rollback on the transaction itself, and
// everything once the attempt has ended: the connection serves somebody else then, and pgx's own transaction would not
// know, since its COMMIT goes out in our batch. The embedded Tx serves what is not overridden here.
type pgxTx struct {
	pgx.Tx
	attempt   *attempt.Attempt
	savepoint *attempt.Mark // nil: the transaction itself
}

// Attempt is how the outbox knows that a transaction is ours.
func (t *pgxTx) Attempt() *attempt.Attempt { return t.attempt }

func (t *pgxTx) Commit(ctx context.Context) error {
	if !t.attempt.Enter() {
		return pgx.ErrTxClosed
	}
	defer t.attempt.Leave()
	if t.savepoint == nil {
		return ErrTxManaged
	}
	return t.Tx.Commit(ctx)
}

func (t *pgxTx) Rollback(ctx context.Context) error {
	if !t.attempt.Enter() {
		return pgx.ErrTxClosed
	}
	defer t.attempt.Leave()
	if t.savepoint == nil {
		return ErrTxManaged
	}
	err := t.Tx.Rollback(ctx)
	if err == nil {
		t.attempt.Reset(*t.savepoint)
	}
	return err
}

func (t *pgxTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if !t.attempt.Enter() {
		return nil, pgx.ErrTxClosed
	}
	defer t.attempt.Leave()
	mark := t.attempt.Mark()
	tx, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &pgxTx{Tx: tx, attempt: t.attempt, savepoint: &mark}, nil
}

func (t *pgxTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if !t.attempt.Enter() {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	defer t.attempt.Leave()
	return t.Tx.Exec(ctx, sql, args...)
}

func (t *pgxTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if !t.attempt.Enter() {
		return closedRows{}, pgx.ErrTxClosed
	}
	defer t.attempt.Leave()
	return t.Tx.Query(ctx, sql, args...)
}

func (t *pgxTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if !t.attempt.Enter() {
		return closedRows{}
	}
	defer t.attempt.Leave()
	return t.Tx.QueryRow(ctx, sql, args...)
}

func (t *pgxTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	if !t.attempt.Enter() {
		return pgx.FailedBatchResults(batch, pgx.ErrTxClosed)
	}
	defer t.attempt.Leave()
	return t.Tx.SendBatch(ctx, batch)
}

func (t *pgxTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if !t.attempt.Enter() {
		return 0, pgx.ErrTxClosed
	}
	defer t.attempt.Leave()
	return t.Tx.CopyFrom(ctx, table, columns, source)
}

func (t *pgxTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if !t.attempt.Enter() {
		return nil, pgx.ErrTxClosed
	}
	defer t.attempt.Leave()
	return t.Tx.Prepare(ctx, name, sql)
}

// Conn is nil once the attempt has ended: the connection serves somebody else.
func (t *pgxTx) Conn() *pgx.Conn {
	if t.attempt.Ended() {
		return nil
	}
	return t.Tx.Conn()
}

// closedRows is the result of a query on an ended transaction.
type closedRows struct{}

func (closedRows) Close()                                       {}
func (closedRows) Err() error                                   { return pgx.ErrTxClosed }
func (closedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (closedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (closedRows) Next() bool                                   { return false }
func (closedRows) Scan(...any) error                            { return pgx.ErrTxClosed }
func (closedRows) Values() ([]any, error)                       { return nil, pgx.ErrTxClosed }
func (closedRows) RawValues() [][]byte                          { return nil }
func (closedRows) Conn() *pgx.Conn                              { return nil }
func (closedRows) TypeMap() *pgtype.Map                         { return nil }
