package pgserver

import "syscall"

const (
	tmpfsMagic = 0x01021994
	roomyBytes = 1 << 30
)

// roomyMemory tells whether path is a file system in memory with room for a server: databases are made several times as fast
// in it. Docker's /dev/shm has 64 MiB and is left alone.
func roomyMemory(path string) bool {
	var stat syscall.Statfs_t
	err := syscall.Statfs(path, &stat)
	return err == nil && int64(stat.Type) == tmpfsMagic && stat.Bavail*uint64(stat.Bsize) >= roomyBytes
}
