package tokentest

import (
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// StartFirst starts a command that goes before what else the machine does, with
// all that it starts, where that is allowed: it is as unwilling to wait as can be
// (nice -20), which a program has from the thread that starts it. The simulated
// GPU takes its own time whatever else the machine does, so who launches too late
// loses some of it, and what a scheduler gives cannot be told from what that
// takes. A real-time priority would be no good: those that have it wait for each
// other until they sleep.
func StartFirst(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.SchedGetAttr(0, 0)
	if err == nil && unix.Setpriority(unix.PRIO_PROCESS, 0, -20) == nil {
		defer unix.SchedSetAttr(0, before, 0)
	}
	return cmd.Start()
}
