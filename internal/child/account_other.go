//go:build !unix

package child

import "os/exec"

const Supported = false

func (*Account) become(*exec.Cmd) {}

func detach(*exec.Cmd) {}

func (*Account) Owns(string) bool { return false }
