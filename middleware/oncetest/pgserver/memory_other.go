//go:build !linux

package pgserver

func roomyMemory(string) bool { return false }
