package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

// host is the server that the tests of a process share.
type host interface {
	newDatabase(ctx context.Context, template string) (name string, err error)
	dropDatabase(ctx context.Context, name string) error
	url(database string) string
	close() error
}

var shared struct {
	sync.Mutex
	host
	err error
}

func openShared(t testing.TB) host {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.host == nil && shared.err == nil {
		if address := os.Getenv("DATABASE_URL"); address != "" {
			shared.host, shared.err = newForeign(address)
		} else {
			shared.host, shared.err = newOwn()
		}
	}
	require.NoError(t, shared.err)
	return shared.host
}

func closeShared() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.host == nil {
		return nil
	}
	err := errors.Join(dropTemplates(shared.host), shared.close())
	shared.host = nil
	return err
}

func newDatabase(t testing.TB, template string) string {
	t.Helper()
	h := openShared(t)
	name, err := h.newDatabase(t.Context(), template)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), longest)
		defer cancel()
		require.NoError(t, h.dropDatabase(ctx, name))
	})
	return h.url(name)
}

// own is a server that this process has started.
type own struct{ server *pgserver.Server }

func newOwn() (host, error) {
	server, err := start()
	if err != nil {
		return nil, err
	}
	return own{server}, nil
}

func (o own) newDatabase(ctx context.Context, template string) (string, error) {
	return o.server.NewDatabase(ctx, template)
}

func (o own) dropDatabase(ctx context.Context, name string) error {
	return o.server.DropDatabase(ctx, name)
}

func (o own) url(database string) string { return o.server.URL(database) }
func (o own) close() error               { return o.server.Close() }

// foreign is the server of DATABASE_URL, which other processes may be using too.
type foreign struct{ address *url.URL }

func newForeign(address string) (host, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" {
		return nil, errors.New("DATABASE_URL is no URL")
	}
	f := foreign{u}
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	if err := f.exec(ctx, "select 1"); err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	return f, nil
}

func (f foreign) newDatabase(ctx context.Context, template string) (string, error) {
	if template == "" {
		template = "template0"
	}
	name := "once_" + strings.ToLower(rand.Text())
	return name, f.exec(ctx, "create database "+name+" template "+template)
}

func (f foreign) dropDatabase(ctx context.Context, name string) error {
	return f.exec(ctx, "drop database "+name+" with (force)")
}

func (f foreign) url(database string) string {
	u := *f.address
	u.Path, u.RawPath = "/"+database, ""
	return u.String()
}

func (f foreign) close() error { return nil }

func (f foreign) exec(ctx context.Context, query string) error {
	conn, err := pgx.Connect(ctx, f.address.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, query)
	return err
}
