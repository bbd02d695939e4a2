package middleware_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/ordering"
	"github.com/watermill-once/watermill-once/outbox"
)

func TestPermanent(t *testing.T) {
	t.Parallel()
	require.NoError(t, once.Permanent(nil))
	declined := errors.New("declined")
	err := once.Permanent(declined)
	require.EqualError(t, err, "declined")
	require.ErrorIs(t, err, declined)
	require.True(t, once.IsPermanent(fmt.Errorf("handle: %w", err)))
	require.False(t, once.IsPermanent(declined))
	require.True(t, once.IsPermanent(outbox.ErrInvalidMessage))
	for _, err := range []error{
		dedupe.ErrUnknown, dedupe.ErrFingerprintMismatch, dedupe.ErrInTransaction, dedupe.Final(declined),
	} {
		require.True(t, once.IsPermanent(fmt.Errorf("charge: %w", err)), "%v", err)
	}
	for _, err := range []error{dedupe.ErrInFlight, dedupe.ErrLeaseLost, dedupe.ErrOutcomeLost, dedupe.NotDone(declined)} {
		require.False(t, once.IsPermanent(fmt.Errorf("charge: %w", err)), "%v", err)
	}
	require.False(t, once.IsPermanent(nil))
	require.False(t, once.ShouldRetry(wmiddleware.RetryParams{Err: err}))
	require.True(t, once.ShouldRetry(wmiddleware.RetryParams{Err: declined}))
}

func TestShouldPoison(t *testing.T) {
	t.Parallel()
	state := func(code string) error { return fmt.Errorf("apply: %w", &pgconn.PgError{Code: code}) }
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nil":                    {nil, false},
		"a handler's error":      {errors.New("no such card"), true},
		"permanent":              {once.Permanent(errors.New("no such card")), true},
		"cut JSON":               {io.ErrUnexpectedEOF, true},
		"bad key":                {fmt.Errorf("x: %w", dedupe.ErrInvalidKey), true},
		"bad position":           {fmt.Errorf("x: %w", ordering.ErrInvalidPosition), true},
		"bad message":            {fmt.Errorf("x: %w", outbox.ErrInvalidMessage), true},
		"another request":        {fmt.Errorf("x: %w", dedupe.ErrFingerprintMismatch), true},
		"unknown call":           {fmt.Errorf("x: %w", dedupe.ErrUnknown), true},
		"final":                  {fmt.Errorf("x: %w", dedupe.Final(context.DeadlineExceeded)), true},
		"not done":               {dedupe.NotDone(errors.New("busy")), true},
		"call in flight":         {dedupe.ErrInFlight, false},
		"lease lost":             {dedupe.ErrLeaseLost, false},
		"outcome lost":           {dedupe.ErrOutcomeLost, false},
		"call in a transaction":  {dedupe.ErrInTransaction, false},
		"aborted":                {once.ErrTxAborted, true},
		"ended":                  {once.ErrTxEnded, true},
		"unknown":                {once.ErrCommitUnknown, false},
		"no outbox":              {once.ErrNoOutbox, false},
		"no topic":               {once.ErrNoTopic, false},
		"no consumer":            {once.ErrNoConsumer, false},
		"permanent no outbox":    {once.Permanent(once.ErrNoOutbox), false},
		"permanent deadline":     {once.Permanent(context.DeadlineExceeded), true},
		"permanent network":      {once.Permanent(&net.OpError{Op: "dial", Err: io.EOF}), true},
		"permanent 42501":        {once.Permanent(state("42501")), true},
		"managed":                {once.ErrTxManaged, false},
		"no transaction":         {outbox.ErrNoTransaction, false},
		"NUL in an argument":     {&pgconn.PgError{Code: "08P01", SeverityUnlocalized: "ERROR"}, true},
		"PgBouncer's 08P01":      {&pgconn.PgError{Code: "08P01", SeverityUnlocalized: "FATAL"}, false},
		"25P03":                  {state("25P03"), false},
		"26000":                  {state("26000"), false},
		"42P05":                  {state("42P05"), false},
		"canceled":               {context.Canceled, false},
		"deadline":               {fmt.Errorf("call: %w", context.DeadlineExceeded), false},
		"bad connection":         {driver.ErrBadConn, false},
		"network":                {&net.OpError{Op: "read", Err: io.EOF}, false},
		"unique violation":       {state("23505"), true},
		"division by zero":       {state("22012"), true},
		"undefined table":        {state("42P01"), false},
		"bad SQL":                {state("42601"), false},
		"another driver's":       {&pq.Error{Code: "23505"}, true},
		"another driver's class": {&pq.Error{Code: "53300"}, false},
		"08":                     {state("08006"), false},
		"28":                     {state("28P01"), false},
		"40":                     {state("40P01"), false},
		"53":                     {state("53100"), false},
		"57P":                    {state("57P01"), false},
		"57014":                  {state("57014"), true},
		"58":                     {state("58030"), false},
		"25006":                  {state("25006"), false},
		"3D000":                  {state("3D000"), false},
		"42501":                  {state("42501"), false},
		"55P03":                  {state("55P03"), false},
		"joined":                 {errors.Join(errors.New("a"), state("57P01")), false},
	} {
		require.Equal(t, c.want, once.ShouldPoison(c.err), name)
	}
}

func TestKindString(t *testing.T) {
	t.Parallel()
	require.Equal(t, "failed fresh duplicate stale unknown",
		fmt.Sprint(once.Failed, " ", once.Fresh, " ", once.Duplicate, " ", once.Stale, " ", once.Kind(99)))
}
