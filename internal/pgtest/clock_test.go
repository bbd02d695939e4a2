package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/internal/pgtest"
)

func TestClockJumps(t *testing.T) {
	t.Parallel()
	clock := pgtest.ClockServer(t)
	conn, err := pgx.Connect(t.Context(), clock.URL("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	for _, off := range []time.Duration{0, 30 * time.Second, -30 * time.Second, 1500 * time.Millisecond} {
		require.NoError(t, clock.SetOff(off))
		before := time.Now()
		var now time.Time
		require.NoError(t, conn.QueryRow(t.Context(), `select clock_timestamp()`).Scan(&now))
		require.WithinRange(t, now.Add(-off), before.Add(-10*time.Millisecond), time.Now().Add(10*time.Millisecond))
	}
}
