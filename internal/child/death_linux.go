package child

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel end the child when the thread that started it ends. SIGQUIT gives a server the chance to end its
// own children. To be called after become: a change of the user would undo it.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT }
