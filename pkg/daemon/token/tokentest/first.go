package tokentest

import (
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// StartWithPriority starts a command with the highest priority (nice -20) for itself and its child
// processes, if that is permitted. The child inherits the priority from the thread that starts it.
// The simulated GPU runs in real time regardless of other load on the node, so a client that
// launches late loses GPU time, and a test could not distinguish this loss from the scheduler's
// decisions. A real-time priority does not help: processes with such a priority wait for each other
// until they sleep.
func StartWithPriority(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.SchedGetAttr(0, 0)
	if err == nil && unix.Setpriority(unix.PRIO_PROCESS, 0, -20) == nil {
		defer unix.SchedSetAttr(0, before, 0)
	}
	return cmd.Start()
}
