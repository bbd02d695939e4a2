package tcpproxy

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// clock is a timer of the kernel's, read like a file. Go's own timers are a millisecond too late where the program is idle, for
// they end in epoll_wait, which counts milliseconds; a file that becomes readable ends that wait at once.
type clock struct {
	file  *os.File // nil where the kernel gave none
	count [8]byte
}

const (
	clockMonotonic = 1
	nonblocking    = syscall.O_NONBLOCK | syscall.O_CLOEXEC
)

func newClock() *clock {
	fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, clockMonotonic, nonblocking, 0)
	if errno != 0 {
		return &clock{}
	}
	return &clock{file: os.NewFile(fd, "timerfd")}
}

func (c *clock) sleep(d time.Duration) {
	if !c.set(d) {
		time.Sleep(d)
		return
	}
	_, _ = c.file.Read(c.count[:])
}

func (c *clock) set(d time.Duration) bool {
	if c.file == nil {
		return false
	}
	raw, err := c.file.SyscallConn()
	if err != nil {
		return false
	}
	once := [2]syscall.Timespec{1: syscall.NsecToTimespec(int64(d))} // interval, first
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, fd, 0, uintptr(unsafe.Pointer(&once)), 0, 0, 0)
	})
	return err == nil && errno == 0
}

func (c *clock) close() {
	if c.file != nil {
		_ = c.file.Close()
	}
}
