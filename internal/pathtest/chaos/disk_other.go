//go:build !linux

package main

import (
	"errors"

	"github.com/watermill-once/watermill-once/internal/child"
)

// smallDisk is for Linux alone.
type smallDisk struct{ tables string }

func newSmallDisk(*child.Account, string) (*smallDisk, error) { return nil, errors.ErrUnsupported }

func (*smallDisk) fill() error { return errors.ErrUnsupported }
func (*smallDisk) free() error { return errors.ErrUnsupported }
