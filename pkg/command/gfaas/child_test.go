package gfaas

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

	"github.com/gfaas/gfaas/pkg/adapter/mps/mpstest"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/procfs"
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

// What the command's processes leave to this one is reaped when it has ended.
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
	eventually(t, "it is reaped", func() bool { _, err := procfs.Read(pid); return procfs.Gone(err) })
	if status, err := reap(command); status != 0 || err != nil {
		t.Errorf("the command: status %d, %v", status, err)
	}
}

// The kernel does not kill a client of MPS with gfaas run: its GPU work has to end first.
func TestOnMPS(t *testing.T) {
	mpstest.Install(t)
	owners := t.TempDir()
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", owners)
	for name, c := range map[string]struct {
		pipes     string
		simulated bool
		owners    bool // the owner's daemon runs
		want      bool
	}{
		"private daemon":                 {pipes: "/run/pipes", want: true},
		"no daemon":                      {},
		"owner's daemon":                 {owners: true, want: true},
		"owner's daemon, simulated GPU":  {owners: true, simulated: true},
		"private and the owner's daemon": {pipes: "/run/pipes", owners: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.owners {
				mpstest.Start(t, owners)
			}
			if got := onMPS(preload.Grant{MPSPipeDir: c.pipes}, gpu.Device{Simulated: c.simulated}); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
