package token

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// TestStoppedHolder stops a process that holds a lease while another client waits. The other client
// must get the GPU after a while, and the process must continue when it is resumed.
func TestStoppedHolder(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", share{sm: 60, request: 0.6, limit: 0.6}))
	cmd := role(t, roleLooper, s.clientSocket(), "holds")
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// If it is stopped while it waits, it is granted a lease first, which it does not return.
	eventually(t, "the stopped client is suspended", func() bool { return s.status().GPUs[0].Clients[0].State == "suspended" })
	b := s.join(reg("b", share{sm: 60, request: 0.8, limit: 0.8}))
	s.lease(b)
	if got := s.status().GPUs[0].SMRunningPct; got > 60 {
		t.Errorf("SMs with leases: got %v%%, want at most 60%%", got)
	}
	b.Close()
	if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	before := s.status().GPUs[0].Clients[0].Launches
	eventually(t, "the resumed client has launched kernels", func() bool { return s.status().GPUs[0].Clients[0].Launches > before+5 })
}

// TestStubbornHolder checks that a running process that does not return its lease delays other
// clients only for a limited time, and can then continue.
func TestStubbornHolder(t *testing.T) {
	s := serve(t, Config{})
	a, b := s.join(reg("a", share{sm: 60, request: 0.6, limit: 0.6})), s.join(reg("b", share{sm: 60, request: 0.6, limit: 0.6}))
	lease := s.lease(a)
	if err := b.Request(); err != nil {
		t.Fatal(err)
	}
	<-a.Revoked
	stateAfter := func(revoked time.Duration) (state string) {
		_ = s.d.locked(func() {
			for m := range s.d.registry.sessions() {
				if m.lease == lease {
					m.revokedAt = s.d.registry.gpus.now() - revoked
				}
			}
			s.d.registry.gpus.gpus["sim"].checkStopped()
		})
		return s.row("a").State
	}
	if state := stateAfter(maxPatience - time.Second); state != "draining" {
		t.Errorf("holder %v after the revocation: got state %s, want draining", maxPatience-time.Second, state)
	}
	if state := stateAfter(maxPatience); state != "suspended" {
		t.Errorf("holder %v after the revocation: got state %s, want suspended", maxPatience, state)
	}
	s.await(b)
	if err := a.Return(lease, time.Millisecond, tokentest.WantsMore); err != nil {
		t.Fatal(err)
	}
	eventually(t, "client a waits for a lease", func() bool { return s.row("a").State == "waiting" })
}

func TestFrozen(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"docker/a/cgroup.events": "populated 1\nfrozen 1\n", "docker/b/cgroup.events": "populated 1\nfrozen 0\n",
		"freezer/x/freezer.state": "FROZEN\n", "freezer/y/freezer.state": "THAWED\n",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		groups []procfs.Cgroup
		want   bool
	}{
		{[]procfs.Cgroup{{Path: "/docker/a"}}, true}, {[]procfs.Cgroup{{Path: "/docker/b"}}, false},
		{[]procfs.Cgroup{{Path: "/nowhere"}}, false}, {nil, false},
		{[]procfs.Cgroup{{Controllers: "cpu", Path: "/x"}, {Controllers: "freezer", Path: "/x"}}, true},
		{[]procfs.Cgroup{{Controllers: "freezer", Path: "/y"}, {Path: "/docker/b"}}, false},
	} {
		if got := frozen(root, tt.groups); got != tt.want {
			t.Errorf("frozen(%+v): got %v, want %v", tt.groups, got, tt.want)
		}
	}
}
