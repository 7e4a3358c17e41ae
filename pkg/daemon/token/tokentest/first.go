package tokentest

import (
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// StartFirst starts a command that goes before all else on the machine, with
// all that it starts, where that is allowed: with a real-time priority, which a
// program has from the thread that starts it. The simulated GPU takes its own
// time whatever else the machine does, so who launches too late loses some of
// it, and what a scheduler gives cannot be told from what that takes.
func StartFirst(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.SchedGetAttr(0, 0)
	if err == nil && unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_RR, Priority: 1}, 0) == nil {
		defer unix.SchedSetAttr(0, before, 0)
	}
	return cmd.Start()
}
