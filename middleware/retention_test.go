package middleware_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
)

// docs/retention.md shows the functions between these lines.

// sweep begins
func sweepOldRows(ctx context.Context, pool *pgxpool.Pool, logger watermill.LoggerAdapter) error {
	sweeper, err := once.NewSweeper(pool, once.SweeperConfig{
		ClaimsAge:       90 * 24 * time.Hour,
		BrokerRetention: 14 * 24 * time.Hour, // the topics keep a week, and a consumer may be down for another
	}, logger)
	if err != nil {
		return err
	}
	return sweeper.Run(ctx) // beside the Router, until ctx ends
}

// sweep ends

// age begins
var config = once.Config{
	Consumer: "orders",
	Dedupe:   dedupe.Config{Key: dedupe.JSONField("id")},
	MaxAge:   90 * 24 * time.Hour, // ClaimsAge, or less
	Time:     once.JSONTime("created_at"),
}

// age ends

// forget begins
func handleAgain(ctx context.Context, pool *pgxpool.Pool, ids ...string) (forgotten once.Forgotten, err error) {
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		forgotten, err = config.Forget(ctx, tx, "orders", ids...)
		return err
	})
	return forgotten, err
}

// forget ends

func retentionDoc(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile("../docs/retention.md")
	require.NoError(t, err)
	return string(doc)
}

func TestRetentionDocShowsThisCode(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("retention_test.go")
	require.NoError(t, err)
	for _, name := range []string{"sweep", "age", "forget"} {
		_, code, _ := strings.Cut(string(source), "// "+name+" begins\n")
		code, _, _ = strings.Cut(code, "\n// "+name+" ends\n")
		require.Contains(t, retentionDoc(t), "```go\n"+code+"```\n")
	}
}

func TestRetentionDocTellsTheTruth(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	of := func(id string, at time.Time) *message.Message {
		return message.NewMessage(watermill.NewUUID(), []byte(`{"id":"`+id+`","created_at":"`+at.UTC().Format(time.RFC3339)+`"}`))
	}
	h := w.consume(config, apply)
	old := time.Now().Add(-91 * day)
	require.NoError(t, deliver(t, h, of("e1", time.Now())))
	require.ErrorIs(t, deliver(t, h, of("e2", old)), once.ErrTooOld)

	forgotten, err := handleAgain(t.Context(), w.pool, "e1", "e2")
	require.NoError(t, err)
	require.Equal(t, once.Forgotten{Claims: 1}, forgotten)
	require.NoError(t, deliver(t, h, of("e1", time.Now())))
	require.Equal(t, 2, w.effects())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, sweepOldRows(ctx, w.pool, nil))
}

// The statements that bring over what another table knows make its events duplicates, and its entities' old events stale.
func TestRetentionDocSeeds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pgx")
	_, err := w.pool.Exec(t.Context(), `
		create table processed (id text primary key, handled_at timestamptz not null);
		insert into processed values ('e1', now() - interval '1 day'), ('e2', now());
		create table cards (id text primary key, version bigint not null, changed_at timestamptz not null);
		insert into cards values ('card', 7, '2026-01-02 03:04:05.000006Z')`)
	require.NoError(t, err)
	var scripts []string
	for _, block := range strings.Split(retentionDoc(t), "```sql\n")[1:] {
		script, _, _ := strings.Cut(block, "```")
		scripts = append(scripts, script)
	}
	require.Len(t, scripts, 2)
	for range 2 { // once before the switch and once after
		for _, script := range scripts {
			_, err := w.pool.Exec(t.Context(), script)
			require.NoError(t, err)
		}
	}
	var seen recorder
	h := w.consume(once.Config{Consumer: "orders", Ordering: byMetadata, OnOutcome: seen.record}, apply)
	for _, msg := range []*message.Message{
		versioned("e1", "another card", "1"), versioned("e2", "another card", "1"), versioned("e3", "card", "7"), versioned("e4", "card", "8"),
	} {
		require.NoError(t, deliver(t, h, msg))
	}
	var kinds []once.Kind
	for _, o := range seen.outcomes {
		kinds = append(kinds, o.Kind)
	}
	require.Equal(t, []once.Kind{once.Duplicate, once.Duplicate, once.Stale, once.Fresh}, kinds)
	require.Equal(t, 1, w.count(`select count(*) from watermill_processed_events where event_id = 'e1' and processed_at < now() - interval '23 hours'`))
	require.Contains(t, retentionDoc(t), "`(extract(epoch from changed_at) * 1000000)::bigint`")
	require.EqualValues(t, time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC).UnixMicro(), w.count(`select (extract(epoch from changed_at) * 1000000)::bigint from cards`))
}
