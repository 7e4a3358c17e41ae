package gfaas

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/wire"
)

// TestRunStartsTheDaemonAgain kills the token daemon of a gfaas run. The command starts the daemon again with the
// same slice, and its program notices nothing. The test runs no other command in between that could start the
// daemon.
func TestRunStartsTheDaemonAgain(t *testing.T) {
	t.Parallel()
	p := newEnvironment(t)
	run, started, done := p.getenv("GFAAS_RUN_DIR"), filepath.Join(p.dir, "begun"), filepath.Join(p.dir, "done")
	cmd := p.command("run", "--name", "patient", "--quota", "0.3", "--", "sh", "-c", `: >"$1"; while ! test -e "$2"; do sleep 0.01; done`, "sh", started, done)
	stderr := &screen{}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	daemon := func() int { // PID of the daemon with the slice; 0: none
		text, _ := os.ReadFile(filepath.Join(run, "token.lock"))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		if _, err := os.Stat(filepath.Join(run, "instances", "patient.json")); err != nil {
			return 0
		}
		return pid
	}
	eventually(t, "the program runs in its slice", func() bool {
		_, err := os.Stat(started)
		return err == nil && daemon() > 0
	})
	first := daemon()
	if err := syscall.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var status wire.Status
	eventually(t, "another daemon answers", func() bool {
		if pid := daemon(); pid == 0 || pid == first {
			return false
		}
		var err error
		status, err = tokend.Dial(run).Status(t.Context()) // the daemon takes its lock before it listens
		return err == nil
	})
	if c := status.GPUs[0].Clients; len(c) != 1 || c[0].Instance != "patient" || c[0].QuotaRequest != 0.3 {
		t.Errorf("clients of the new daemon: got %+v, want patient with QuotaRequest 0.3", c)
	}
	// The message follows when the daemon has answered, unless the program has ended by then.
	eventually(t, "gfaas run reports that it started the daemon", func() bool {
		return strings.Contains(stderr.String(), "the token daemon had ended: started it again")
	})
	p.write("done", "")
	if status := exitStatus(cmd.Wait()); status != 0 {
		t.Errorf("exit status of gfaas run: got %d, want 0", status)
	}
}
