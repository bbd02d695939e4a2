package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/watermill-once/watermill-once/internal/child"
)

// smallDisk is a file system in memory, whose size can be set.
type smallDisk struct{ mount, tables string }

func newSmallDisk(account *child.Account, dir string) (*smallDisk, error) {
	d := &smallDisk{mount: filepath.Join(dir, diskName)}
	if err := os.Mkdir(d.mount, 0o755); err != nil {
		return nil, err
	}
	if err := syscall.Mount("tmpfs", d.mount, "tmpfs", 0, roomy); err != nil {
		return nil, fmt.Errorf("mount a file system: %w", err)
	}
	d.tables = filepath.Join(d.mount, "tables")
	if err := os.Mkdir(d.tables, 0o700); err != nil {
		return nil, err
	}
	return d, account.Give(d.tables)
}

const roomy = "size=4g"

// fill leaves next to no room but for what the files have. They grow meanwhile, so that it may take a few tries.
func (d *smallDisk) fill() (err error) {
	for range 10 {
		var used syscall.Statfs_t
		if err = syscall.Statfs(d.mount, &used); err != nil {
			return err
		}
		size := (used.Blocks - used.Bfree) * uint64(used.Bsize)
		if err = d.resize(fmt.Sprintf("size=%d", size+64<<10)); err == nil {
			return nil
		}
	}
	return err
}

func (d *smallDisk) free() error { return d.resize(roomy) }

func (d *smallDisk) resize(size string) error {
	return syscall.Mount("tmpfs", d.mount, "tmpfs", syscall.MS_REMOUNT, size)
}
