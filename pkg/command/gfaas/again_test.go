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

// A token daemon that is killed under gfaas run is started again by it, with the slice
// that it had, and its program never knows. No other command is run meanwhile that
// could have started it.
func TestRunStartsTheDaemonAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	run, begun, done := p.getenv("GFAAS_RUN_DIR"), filepath.Join(p.dir, "begun"), filepath.Join(p.dir, "done")
	cmd := p.command("run", "--name", "patient", "--quota", "0.3", "--", "sh", "-c", `: >"$1"; while ! test -e "$2"; do sleep 0.01; done`, "sh", begun, done)
	said := &screen{}
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	daemon := func() int { // that has the slice; 0: none
		text, _ := os.ReadFile(filepath.Join(run, "token.lock"))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		if _, err := os.Stat(filepath.Join(run, "instances", "patient.json")); err != nil {
			return 0
		}
		return pid
	}
	eventually(t, "the program runs in its slice", func() bool {
		_, err := os.Stat(begun)
		return err == nil && daemon() > 0
	})
	first := daemon()
	if err := syscall.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var status wire.Status
	eventually(t, "there is a daemon again, which answers", func() bool {
		if again := daemon(); again == 0 || again == first {
			return false
		}
		var err error
		status, err = tokend.Dial(run).Status(t.Context()) // it has its lock before its socket
		return err == nil
	})
	if c := status.GPUs[0].Clients; len(c) != 1 || c[0].Instance != "patient" || c[0].QuotaRequest != 0.3 {
		t.Errorf("it has %+v", c)
	}
	// It says so once it has seen the daemon answer, if its program has not ended by then.
	eventually(t, "it says that it started the daemon", func() bool {
		return strings.Contains(said.String(), "the token daemon was gone: started it again")
	})
	p.write("done", "")
	if status := exitStatus(cmd.Wait()); status != 0 {
		t.Errorf("exit %d", status)
	}
}
