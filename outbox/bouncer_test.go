package outbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
	"github.com/watermill-once/watermill-once/outbox"
)

// Behind PgBouncer in transaction mode each transaction may meet another backend. (Writing needs nothing of a session.)
func TestPublishThroughPgBouncer(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	through := pgtest.Bouncer(t, address)
	pool := pgtest.PoolOn(t, address)
	p := newPublisher(t, outbox.Config{})
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			config, err := pgxpool.ParseConfig(through)
			require.NoError(t, err)
			config.ConnConfig.DefaultQueryExecMode = mode
			bounced, err := pgxpool.NewWithConfig(t.Context(), config)
			require.NoError(t, err)
			t.Cleanup(bounced.Close)
			for range 7 {
				for _, count := range []int{1, 17} {
					msgs := difficult(count)
					inTx(t, bounced, func(tx pgx.Tx) { require.NoError(t, p.PublishTx(t.Context(), tx, "topic", msgs...)) })
				}
			}
			require.Len(t, contents(t, pool, outbox.Config{}), 7*18)
			_, err = pool.Exec(t.Context(), `delete from watermill_outbox`)
			require.NoError(t, err)
		})
	}
}
