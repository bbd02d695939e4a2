//go:build !unix

package main

import "errors"

func freezeProcess(int) error { return errors.ErrUnsupported }
func thawProcess(int) error   { return errors.ErrUnsupported }
