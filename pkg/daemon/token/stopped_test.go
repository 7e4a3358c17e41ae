package token

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStoppedHolder stops a process that holds a lease while another waits:
// after a while nobody waits for it any longer, and when it goes on it takes
// part again.
func TestStoppedHolder(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", 60, 0.6, 0.6))
	cmd := role(t, roleLooper, s.clientSocket(), "holds")
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// Stopped while it waited it gets a lease first, and does not give it back.
	eventually(t, "it is suspended", func() bool { return s.status().GPUs[0].Clients[0].State == "suspended" })
	b := s.join(reg("b", 60, 0.8, 0.8))
	s.lease(b)
	if got := s.status().GPUs[0].SMRunningPct; got > 60 {
		t.Errorf("%v%% of SMs hold leases", got)
	}
	b.Close()
	if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	before := s.status().GPUs[0].Clients[0].Launches
	eventually(t, "it goes on", func() bool { return s.status().GPUs[0].Clients[0].Launches > before+5 })
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
	for groups, want := range map[string]bool{
		"0::/docker/a\n": true, "0::/docker/b\n": false, "0::/nowhere\n": false, "": false, "garbage\n": false,
		"3:cpu:/x\n7:freezer:/x\n": true, "7:freezer:/y\n0::/docker/b\n": false,
	} {
		if got := frozen(root, groups); got != want {
			t.Errorf("%q: %v", groups, got)
		}
	}
}
