package child

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// After the command was reaped, its PID may be reused, so no signal is sent to it, even if
// many arrive at that moment.
func TestNoSignalAfterTheEnd(t *testing.T) {
	caught := make(chan os.Signal, 1) // outside of Run it would end this program
	signal.Notify(caught, unix.SIGCONT)
	defer signal.Stop(caught)
	defer func() { kill = syscall.Kill }()
	sent, afterEnd := 0, 0
	kill = func(pid int, sig syscall.Signal) error {
		if pid != os.Getpid() {
			sent++
			if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); errors.Is(err, unix.ECHILD) {
				afterEnd++
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
		if status, err := Run(t.Context(), []string{"true"}, nil, true); status != 0 || err != nil {
			t.Errorf("status %d, %v; want 0", status, err)
		}
	}
	close(done)
	<-flooded
	if sent == 0 || afterEnd > 0 {
		t.Errorf("signals to a reaped process: got %d of %d, want 0 of at least 1", afterEnd, sent)
	}
}

// Real-time signals are forwarded to the command, each as often as it arrives.
func TestRealTimeSignals(t *testing.T) {
	const each = 2
	if _, err := catchRealTime(); err != nil { // so that no signal arrives too early
		t.Fatal(err)
	}
	defer func() { kill = syscall.Kill }()
	forwarded, total := map[syscall.Signal]int{}, 0
	kill = func(pid int, sig syscall.Signal) error {
		forwarded[sig]++
		if total++; total == each*len(realTime()) {
			return syscall.Kill(pid, unix.SIGKILL)
		}
		return nil
	}
	for _, s := range realTime() {
		for range each {
			if err := syscall.Kill(os.Getpid(), s); err != nil {
				t.Fatal(err)
			}
		}
	}
	if status, err := Run(t.Context(), []string{"sleep", "600"}, nil, true); status != 128+9 || err != nil {
		t.Errorf("status %d, %v; want %d", status, err, 128+9)
	}
	for _, s := range realTime() {
		if forwarded[s] != each {
			t.Errorf("signal %d was forwarded %d times, want %d", s, forwarded[s], each)
		}
	}
}

// Orphans of the command are reaped by this process after they have ended.
func TestOrphansAreReaped(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	// The shell between the two ends at once.
	text, err := exec.Command("sh", "-c", "(sleep 0.1 >/dev/null & echo $!)").Output()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	command, err := syscall.ForkExec("/bin/true", []string{"true"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := await(command); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() { reapOrphans(stop, time.Millisecond, command); close(done) }()
	defer func() { close(stop); <-done }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := procfs.Read(pid); procfs.IsNotExist(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the orphan was not reaped before the deadline, want it reaped")
		}
	}
	if status, err := reap(command); status != 0 || err != nil {
		t.Errorf("the command: status %d, %v; want 0", status, err)
	}
}
