package pgtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// template is a database that others are copies of.
type template struct {
	once     sync.Once
	database string
	err      error
}

var templates struct {
	sync.Mutex
	named map[string]*template
}

// FromTemplate gives the URL of a database of the test's own that is as setup leaves one. Setup runs once in a process for each
// name; after that, databases are copies, made in a few milliseconds however long setup took.
func FromTemplate(t testing.TB, name string, setup func(ctx context.Context, conn *pgx.Conn) error) string {
	t.Helper()
	h := openShared(t)
	templates.Lock()
	tmpl := templates.named[name]
	if tmpl == nil {
		if templates.named == nil {
			templates.named = map[string]*template{}
		}
		tmpl = &template{}
		templates.named[name] = tmpl
	}
	templates.Unlock()
	tmpl.once.Do(func() { tmpl.err = tmpl.fill(h, setup) })
	require.NoError(t, tmpl.err, "template %s", name)
	return newDatabase(t, tmpl.database)
}

// fill runs outside any one test's context: others wait for it too.
func (tmpl *template) fill(h host, setup func(context.Context, *pgx.Conn) error) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	if tmpl.database, err = h.newDatabase(ctx, ""); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, h.url(tmpl.database))
	if err != nil {
		return err
	}
	// A template cannot be copied while anybody is connected to it.
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	return setup(ctx, conn)
}

func dropTemplates(h host) error {
	templates.Lock()
	defer templates.Unlock()
	var faults []error
	for name, tmpl := range templates.named {
		if tmpl.database == "" {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), longest)
		if err := h.dropDatabase(ctx, tmpl.database); err != nil {
			faults = append(faults, fmt.Errorf("drop template %s: %w", name, err))
		}
		cancel()
	}
	return errors.Join(faults...)
}
