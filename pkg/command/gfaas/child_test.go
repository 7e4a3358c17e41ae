package gfaas

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Once the command is reaped its number may be anybody's: no signal goes there,
// however many come just then.
func TestNoSignalAfterTheEnd(t *testing.T) {
	caught := make(chan os.Signal, 1) // outside of runChild it would end this program
	signal.Notify(caught, unix.SIGCONT)
	defer signal.Stop(caught)
	defer func() { kill = syscall.Kill }()
	sent, late := 0, 0
	kill = func(pid int, sig syscall.Signal) error {
		if pid != os.Getpid() {
			sent++
			if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); errors.Is(err, unix.ECHILD) {
				late++
			}
		}
		return syscall.Kill(pid, sig)
	}
	done := make(chan struct{})
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		for {
			select {
			case <-done:
				return
			default:
				_ = syscall.Kill(os.Getpid(), unix.SIGCONT)
			}
		}
	}()
	<-caught
	deadline := time.Now().Add(time.Minute)
	for i := 0; i < 100 || sent == 0 && time.Now().Before(deadline); i++ { // a busy host may send none for long
		if status, err := runChild(t.Context(), []string{"true"}, os.Environ(), true); status != 0 || err != nil {
			t.Errorf("status %d, %v", status, err)
		}
	}
	close(done)
	<-flooded
	if sent == 0 || late > 0 {
		t.Errorf("%d of %d signals went to a process that was reaped", late, sent)
	}
}
