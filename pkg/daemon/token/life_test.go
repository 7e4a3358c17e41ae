package token

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// TestKilledHolderFreesItsLease kills a process that holds a lease while
// another waits.
func TestKilledHolderFreesItsLease(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", 60, 1, 1))
	cmd := role(t, roleHolder, s.clientSocket(), "holds")
	got := s.status().GPUs[0].Clients[0]
	if got.PID != cmd.Process.Pid || got.State != "running" || got.MemUsedMiB == 0 {
		t.Errorf("status of process %d: %+v", cmd.Process.Pid, got)
	}
	b := s.join(reg("b", 60, 1, 1))
	if err := b.Request(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b waits", func() bool { return s.status().GPUs[0].Clients[1].State == "waiting" })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	s.await(b)
	t.Logf("the next lease came %v after the kill", time.Since(killed))
	eventually(t, "a is absent", func() bool {
		c := s.status().GPUs[0].Clients[0]
		return c.State == "absent" && c.MemUsedMiB == 0
	})
}

// TestRestart: the next daemon knows the instances and their processes come
// back with what they hold.
func TestRestart(t *testing.T) {
	dir := runDir(t)
	socket := filepath.Join(dir, "token.sock")
	first := serve(t, Config{Socket: socket, Private: true})
	a := first.join(reg("a", 60, 0.4, 0.8))
	lease := first.lease(a)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	<-a.Gone
	if atomic.LoadUint32(&a.Slot().Gate) != 0 {
		t.Error("the gate stayed open without a daemon")
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || strings.Contains(strings.Join(left, " "), "token.") {
		t.Errorf("the daemon left %v, %v", left, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "instances", "a.json"))
	if err != nil || strings.Contains(string(text), "secret of a") {
		t.Errorf("registration %s, %v", text, err)
	}

	second := serve(t, Config{Socket: socket, Private: true})
	row := second.status().GPUs[0].Clients[0]
	want := wire.ClientStatus{Instance: "a", Function: "f-a", SMPct: 60, QuotaRequest: 0.4, QuotaLimit: 0.8, State: "absent", MemLimitMiB: 1024, Why: "none of its processes is connected"}
	if row != want {
		t.Errorf("known from before: %+v, want %+v", row, want)
	}
	c, err := second.dial("a", 5<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := second.lease(c); got == lease {
		t.Error("a lease number came twice")
	}
	if got := second.status().GPUs[0].Clients[0].MemUsedMiB; got != 5 {
		t.Errorf("the process came back with %v MiB, want 5", got)
	}
}

// TestFullDisk: where nothing can be written the next daemon serves all the
// same those that are known, and says why it takes no others.
func TestFullDisk(t *testing.T) {
	socket := filepath.Join(runDir(t), "token.sock")
	first := serve(t, Config{Socket: socket})
	first.register(reg("a", 60, 1, 1))
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `ulimit -f 0; exec "$0"`, os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+roleDaemon, pathEnv+"="+socket)
	start(t, cmd, "serves")
	s := &server{t: t, socket: socket}
	if got := s.row("a").State; got != "absent" {
		t.Error(got)
	}
	text, err := json.Marshal(reg("b", 60, 1, 1))
	if err != nil {
		t.Fatal(err)
	}
	if code, body := s.do("POST", "/v1/instances", string(text)); code != http.StatusInternalServerError || !strings.Contains(body, "keep registration") {
		t.Errorf("%d %s", code, body)
	}
	left, err := os.ReadDir(filepath.Join(filepath.Dir(socket), "instances"))
	if err != nil || len(left) != 1 {
		t.Errorf("%v are left, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(socket), "client", "b")); err == nil {
		t.Error("a folder of the other is left")
	}
}

func TestOnlyOneDaemon(t *testing.T) {
	dir := runDir(t)
	socket := filepath.Join(dir, "token.sock")
	// A dead daemon's socket is taken over.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	s := serve(t, Config{Socket: socket})
	for path, mode := range map[string]os.FileMode{socket: 0o600, dir: 0o700, s.d.instancesDir(): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %o", path, info, err, mode)
		}
	}
	if _, err := Open(Config{Socket: socket}); err == nil || !strings.Contains(err.Error(), "another gfaas-tokend serves") {
		t.Errorf("a second daemon: %v", err)
	}
	s.status() // the first still serves
	file := filepath.Join(runDir(t), "token.sock")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Socket: file}); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file in the socket's place: %v", err)
	}
}

func TestExitWhenIdle(t *testing.T) {
	socket := filepath.Join(runDir(t), "token.sock")
	first := serve(t, Config{Socket: socket})
	first.register(reg("a", 60, 1, 1))
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	// It knows the instance from the first moment, however late its client comes.
	s := serve(t, Config{Socket: socket, ExitWhenIdle: 30 * time.Millisecond})
	a, err := s.dial("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	select {
	case <-s.ends:
		t.Fatal("it left with a client")
	case <-time.After(100 * time.Millisecond):
	}
	a.Close()
	if code, _ := s.do("DELETE", "/v1/instances/a", ""); code != http.StatusNoContent {
		t.Fatal("unregister:", code)
	}
	select {
	case err := <-s.ends:
		s.ends <- err
	case <-time.After(patience):
		t.Fatal("it did not leave")
	}
	if _, err := os.Stat(s.socket); err == nil {
		t.Error("the socket is still there")
	}
}

func TestOwnerDies(t *testing.T) {
	owner := exec.Command("cat")
	in, err := owner.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	s := serve(t, Config{ExitWhenIdle: time.Hour / 2})
	s.d.epoch = s.d.epoch.Add(-rejoin)
	r := reg("a", 60, 1, 1)
	r.OwnerPID = owner.Process.Pid
	a := s.join(r)
	_ = in.Close()
	_ = owner.Wait()
	if err := s.d.locked(s.d.lookAfter); err != nil {
		t.Fatal(err)
	}
	if len(s.status().GPUs[0].Clients) != 1 {
		t.Error("the instance went while a process of it was connected")
	}
	a.Close()
	eventually(t, "the instance goes", func() bool {
		_ = s.d.locked(s.d.lookAfter)
		return len(s.status().GPUs[0].Clients) == 0
	})
	bad, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if code, body := s.do("POST", "/v1/instances", string(bad)); code != http.StatusBadRequest || !strings.Contains(body, "is no process") {
		t.Errorf("a dead owner: %d %s", code, body)
	}
}

func TestStaleRegistrations(t *testing.T) {
	dir := runDir(t)
	socket := filepath.Join(dir, "token.sock")
	first := serve(t, Config{Socket: socket})
	first.register(reg("keep", 60, 1, 1))
	r := reg("stale", 60, 1, 1)
	r.OwnerPID = os.Getpid()
	first.register(r)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "instances", "stale.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The owner's number now belongs to a process that started at another time.
	other := strings.Replace(string(text), `"owner_start": `, `"owner_start": 9`, 1)
	for name, content := range map[string]string{path: other, filepath.Join(dir, "instances", "broken.json"): "{"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	second := serve(t, Config{Socket: socket})
	eventually(t, "the stale one goes", func() bool {
		_ = second.d.locked(func() { second.d.epoch = second.d.epoch.Add(-rejoin); second.d.lookAfter() })
		return len(second.status().GPUs[0].Clients) == 1
	})
	if _, err := os.Stat(path); err == nil {
		t.Error("its file is still there")
	}
	if got := second.status().GPUs[0].Clients[0].Instance; got != "keep" {
		t.Errorf("%s was kept", got)
	}
}
