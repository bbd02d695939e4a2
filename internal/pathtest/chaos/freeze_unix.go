//go:build unix

package main

import "syscall"

func freezeProcess(pid int) error { return syscall.Kill(pid, syscall.SIGSTOP) }
func thawProcess(pid int) error   { return syscall.Kill(pid, syscall.SIGCONT) }
