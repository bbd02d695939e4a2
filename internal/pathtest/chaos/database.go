package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/internal/child"
	once "github.com/watermill-once/watermill-once/middleware"
	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

// database is the PostgreSQL server under test: its tables on a disk that can be filled, its clock one that can be set, where
// the machine allows.
type database struct {
	server *pgserver.Server
	pool   *pgxpool.Pool // to the server itself, past the proxies
	disk   *smallDisk    // nil: there is none
	clock  *fakeClock
	guard  *child.Guard
	unable map[kind]string // what cannot be done, and why

	// busy is held while a fault is on it: one at a time.
	busy sync.Mutex
}

const (
	databaseName = "chaos"
	diskName     = "disk"
)

func startDatabase(ctx context.Context) (_ *database, err error) {
	d := &database{unable: map[kind]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	account, err := child.FindAccount("postgres", "nobody")
	if err != nil {
		return nil, err
	}
	dir, err := account.TempDir(ctx, "chaos-", os.TempDir(), "/tmp")
	if err != nil {
		return nil, err
	}
	if d.guard, err = child.NewGuard(dir, "umount -l "+diskName+" 2>/dev/null"); err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	config := pgserver.Config{Params: map[string]string{"checkpoint_timeout": "30s"}}
	if d.clock, err = newFakeClock(account, dir); err != nil {
		d.unable[jumpClock] = err.Error()
	} else {
		config.BinDir, config.CacheDir = d.clock.binDir, filepath.Join(dir, "cache")
	}
	if d.server, err = pgserver.Start(ctx, config); err != nil {
		return nil, err
	}
	place := ""
	if d.disk, err = newSmallDisk(account, dir); err != nil {
		d.unable[fillDisk] = err.Error()
	} else {
		place = " tablespace " + diskName
	}
	if err := d.create(ctx, place); err != nil {
		return nil, err
	}
	if d.pool, err = pgxpool.New(ctx, d.server.URL(databaseName)); err != nil {
		return nil, err
	}
	if err := once.InitializeSchema(ctx, once.Pgx(d.pool)); err != nil {
		return nil, err
	}
	_, err = d.pool.Exec(ctx, tables)
	return d, err
}

func (d *database) create(ctx context.Context, place string) error {
	conn, err := pgx.Connect(ctx, d.server.SocketURL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if d.disk != nil {
		_, err := conn.Exec(ctx, fmt.Sprintf("create tablespace %s location '%s'", diskName, d.disk.tables))
		if err != nil {
			return err
		}
	}
	_, err = conn.Exec(ctx, "create database "+databaseName+place)
	return err
}

// urlBehind is where the database is to be reached by way of a proxy.
func (d *database) urlBehind(proxy string) (string, error) {
	u, err := url.Parse(d.server.URL(databaseName))
	if err != nil {
		return "", err
	}
	u.Host = proxy
	return u.String(), nil
}

// crash stops the server as by a crash, and starts it again after a while.
func (d *database) crash(ctx context.Context, down time.Duration) error {
	if err := d.server.Abort(); err != nil {
		return err
	}
	pause(ctx, down)
	return d.server.Restart(context.WithoutCancel(ctx))
}

func (d *database) close() error {
	var faults []error
	if d.pool != nil {
		d.pool.Close()
	}
	if d.server != nil {
		faults = append(faults, d.server.Close())
	}
	if d.guard != nil {
		faults = append(faults, d.guard.Close())
	}
	return errors.Join(faults...)
}
