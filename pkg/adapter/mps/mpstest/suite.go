package mpstest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
)

// Suite checks a control daemon with the program at a path: starting it, starting it again,
// querying it, and stopping it.
func Suite(t *testing.T, program string) {
	d := mps.Daemon{Program: program, Dir: t.TempDir()}
	ctx := t.Context()
	t.Cleanup(func() {
		// The test's own context is over by now.
		if err := d.Stop(context.WithoutCancel(ctx), 0); err != nil {
			t.Errorf("left a daemon behind: %v", err)
		}
	})
	if d.PID() != 0 {
		t.Fatal("a daemon runs in an empty folder")
	}
	if _, err := d.Servers(ctx); err == nil {
		t.Error("no daemon, and it answers")
	}
	for range 2 {
		if err := d.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	first := d.PID()
	if first == 0 {
		t.Fatal("started, and no PID")
	}
	if servers, err := d.Servers(ctx); err != nil || len(servers) != 0 {
		t.Errorf("servers before any client = %v, %v", servers, err)
	}
	startServer(t, d)
	var servers []mps.Server
	eventually(t, "one server, and active", func() bool {
		var err error
		if servers, err = d.Servers(ctx); err != nil || len(servers) > 1 {
			t.Fatalf("servers = %v, %v, want one", servers, err)
		}
		if len(servers) == 1 && servers[0].State != "ACTIVE" && servers[0].State != "INITIALIZING" {
			t.Fatalf("a new server is %q", servers[0].State)
		}
		return len(servers) == 1 && servers[0].State == "ACTIVE"
	})
	if clients, err := d.Clients(ctx, servers[0].PID); err != nil || len(clients) != 0 {
		t.Errorf("clients = %v, %v, want none", clients, err)
	}
	for range 2 {
		if err := d.Stop(ctx, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if pid := d.PID(); pid != 0 {
		t.Fatalf("stopped, and %d still runs", pid)
	}
	if err := d.Start(ctx); err != nil || d.PID() == first {
		t.Errorf("started anew: %v, PID %d", err, d.PID())
	}
}

// eventually waits up to 20 s until ok returns true: the real program takes seconds to
// start and end.
func eventually(t testing.TB, condition string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so: %s", condition)
		}
	}
}

// startServer starts a server directly, as the first client does indirectly.
func startServer(t *testing.T, d mps.Daemon) {
	t.Helper()
	cmd := exec.Command(d.Program)
	cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+d.PipeDir())
	cmd.Stdin = strings.NewReader(fmt.Sprintf("start_server -uid %d\n", os.Getuid()))
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil && len(out) > 0 {
		t.Fatalf("start_server: %v: %s", err, out)
	}
}
