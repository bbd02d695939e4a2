package main

import (
	"context"
	"database/sql"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The statements that a user writes by hand: the same work on the same tables.
const (
	claimSQL   = `insert into watermill_processed_events (consumer, event_id) values ($1, $2) on conflict do nothing`
	versionSQL = `insert into watermill_entity_versions as v (consumer, entity, version, tie_break, event_id) values ($1, $2, $3, '', $4)
		on conflict (consumer, entity) do update set version = excluded.version, event_id = excluded.event_id, updated_at = now()
		where v.version < excluded.version`
	writeSQL  = `insert into ledger (event_id, card, amount) values ($1, $2, $3)`
	outboxSQL = `insert into watermill_outbox (uuid, topic, key, payload, metadata, transaction_id)
		values ($1, $2, $3, $4, $5, pg_current_xact_id())`
)

// byHandSQL is the loop over database/sql: six round trips.
func byHandSQL(ctx context.Context, db *sql.DB, consumer string, msg *message.Message) error {
	version, err := strconv.ParseInt(msg.Metadata["version"], 10, 64)
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, s := range []struct {
		query string
		args  []any
	}{
		{claimSQL, []any{consumer, msg.UUID}},
		{versionSQL, []any{consumer, msg.Metadata["entity"], version, msg.UUID}},
	} {
		result, err := tx.ExecContext(ctx, s.query, s.args...)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, writeSQL, msg.UUID, msg.Metadata["entity"], 1250); err != nil {
		return err
	}
	out := mail(msg.UUID, msg.Metadata["entity"])
	metadata, err := metadataJSON(out)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, outboxSQL, out.UUID, "mails", msg.Metadata["entity"], []byte(out.Payload), metadata); err != nil {
		return err
	}
	return tx.Commit()
}

// byHandPgx is the same loop over pgxpool.
func byHandPgx(ctx context.Context, pool *pgxpool.Pool, consumer string, msg *message.Message) error {
	version, err := strconv.ParseInt(msg.Metadata["version"], 10, 64)
	if err != nil {
		return err
	}
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for _, s := range []struct {
		query string
		args  []any
	}{
		{claimSQL, []any{consumer, msg.UUID}},
		{versionSQL, []any{consumer, msg.Metadata["entity"], version, msg.UUID}},
	} {
		tag, err := tx.Exec(ctx, s.query, s.args...)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return nil
		}
	}
	if _, err := tx.Exec(ctx, writeSQL, msg.UUID, msg.Metadata["entity"], 1250); err != nil {
		return err
	}
	out := mail(msg.UUID, msg.Metadata["entity"])
	metadata, err := metadataJSON(out)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, outboxSQL, out.UUID, "mails", msg.Metadata["entity"], []byte(out.Payload), metadata); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// The duplicate by hand: BEGIN, insert, ROLLBACK.
func duplicateByHandSQL(ctx context.Context, db *sql.DB, consumer string, msg *message.Message) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, claimSQL, consumer, msg.UUID); err != nil {
		return err
	}
	return tx.Rollback()
}

func duplicateByHandPgx(ctx context.Context, pool *pgxpool.Pool, consumer string, msg *message.Message) error {
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{})
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, claimSQL, consumer, msg.UUID); err != nil {
		return err
	}
	return tx.Rollback(ctx)
}
