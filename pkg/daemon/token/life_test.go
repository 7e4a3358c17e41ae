package token

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/reason"
	"github.com/gfaas/gfaas/pkg/wire"
)

// TestKilledHolderFreesItsLease kills a process that holds a lease while another client waits.
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

// TestRestart checks that the next daemon restores the instances, and that their processes report
// their memory when they connect again.
func TestRestart(t *testing.T) {
	dir := runDir(t)
	socket := filepath.Join(dir, "token.sock")
	first := serve(t, Config{Socket: socket, Private: true})
	a := first.join(reg("a", 60, 0.4, 0.8))
	lease := first.lease(a)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	<-a.Closed
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
	want := wire.ClientStatus{Instance: "a", Function: "f-a", SMPct: 60, QuotaRequest: 0.4, QuotaLimit: 0.8, State: "absent", MemLimitMiB: 1024, Why: "not-connected", Reason: reason.New("not-connected")}
	if !reflect.DeepEqual(row, want) {
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

// TestFullDisk checks that on a full disk the next daemon serves the known instances, and refuses new
// instances with the reason.
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
	if code, body := s.do("POST", "/v1/instances", string(text)); code != http.StatusInternalServerError || !strings.Contains(body, "save the registration") {
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
	// The daemon replaces the socket of a dead daemon.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	s := serve(t, Config{Socket: socket})
	for path, mode := range map[string]os.FileMode{socket: 0o600, dir: 0o700, s.d.registry.records.dir: 0o700} {
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
	if _, err := Open(Config{Socket: file}); err == nil || !strings.Contains(err.Error(), "is not a socket") {
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
	// The daemon counts a restored instance from its start, even if the client connects late.
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
	if err := s.d.locked(func() { s.d.registry.opened = s.d.registry.opened.Add(-reconnectTime) }); err != nil {
		t.Fatal(err)
	}
	r := reg("a", 60, 1, 1)
	r.OwnerPID = owner.Process.Pid
	a := s.join(r)
	_ = in.Close()
	_ = owner.Wait()
	s.d.tidy()
	if len(s.status().GPUs[0].Clients) != 1 {
		t.Error("the instance went while a process of it was connected")
	}
	a.Close()
	eventually(t, "the instance goes", func() bool {
		s.d.tidy()
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
	// The owner's PID now belongs to a process with another start time.
	other := strings.Replace(string(text), `"owner_start": `, `"owner_start": 9`, 1)
	for name, content := range map[string]string{path: other, filepath.Join(dir, "instances", "broken.json"): "{"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	second := serve(t, Config{Socket: socket})
	eventually(t, "the stale one goes", func() bool {
		_ = second.d.locked(func() { second.d.registry.opened = second.d.registry.opened.Add(-reconnectTime) })
		second.d.tidy()
		return len(second.status().GPUs[0].Clients) == 1
	})
	if _, err := os.Stat(path); err == nil {
		t.Error("its file is still there")
	}
	if got := second.status().GPUs[0].Clients[0].Instance; got != "keep" {
		t.Errorf("%s was kept, want keep", got)
	}
}

// TestRegistrationWhileEnding checks that a pending registration does not delay the shutdown.
func TestRegistrationWhileEnding(t *testing.T) {
	s := serve(t, Config{})
	text, err := json.Marshal(reg("late", 60, 1, 1))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST /v1/instances HTTP/1.1\r\nHost: tokend\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(text))
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n') // the daemon reads the body from now on
	if err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatal(line, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	eventually(t, "the sockets are closed", func() bool { return !chassis.Answers("unix", s.socket) })
	_, _ = conn.Write(text)
	answer, _ := io.ReadAll(conn)
	t.Logf("answer: %q", answer)
	select {
	case err := <-stopped:
		stopped <- err
	case <-time.After(10 * time.Second):
		t.Fatal("the daemon does not end")
	}
}

// TestRunDirectoryTakenAway checks that a daemon whose run directory was removed exits after its last
// process, and does not remove files of the daemon that serves the new directory.
func TestRunDirectoryTakenAway(t *testing.T) {
	first := serve(t, Config{Socket: filepath.Join(runDir(t), "token.sock")})
	a := first.join(reg("a", 60, 1, 1))
	first.join(reg("b", 60, 1, 1)).Close()
	if err := os.RemoveAll(filepath.Dir(first.socket)); err != nil {
		t.Fatal(err)
	}
	second := serve(t, Config{Socket: first.socket})
	second.register(reg("a", 60, 1, 1))
	second.register(reg("b", 60, 1, 1))
	first.lease(a) // a continues
	_ = first.d.locked(func() { first.d.registry.remove(first.d.registry.instances["b"], "a test") })
	a.Close()
	select {
	case err := <-first.ends:
		first.ends <- err
	case <-time.After(patience):
		t.Fatal("the first daemon stays, though nobody finds it")
	}
	for _, path := range []string{second.socket, second.clientSocket(), filepath.Join(second.folder("a"), "token.sock"), filepath.Join(second.folder("b"), "token.sock"), filepath.Join(filepath.Dir(second.socket), "token.lock")} {
		if _, err := os.Stat(path); err != nil {
			t.Error("the first daemon took away what is the second's:", err)
		}
	}
	c, err := second.dial("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// TestLeaveBeforeTheNext checks that the daemon calls Cleanup before another daemon can acquire the run
// directory.
func TestLeaveBeforeTheNext(t *testing.T) {
	socket := filepath.Join(runDir(t), "token.sock")
	left := false
	s := serve(t, Config{Socket: socket, Cleanup: func() {
		left = true
		if f, err := lockfile.Acquire(filepath.Join(filepath.Dir(socket), "token.lock")); err == nil {
			t.Errorf("the run directory is free: %v, %v", f, err)
		}
		if chassis.Answers("unix", socket) {
			t.Error("it still answers")
		}
	}})
	if err := s.stop(); err != nil || !left {
		t.Errorf("stopped: %v, left: %v", err, left)
	}
}

// TestKillsAtRandomPoints kills processes at any point of their lives, from before their hello until
// they drain. Their leases must be free at once.
func TestKillsAtRandomPoints(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", 60, 0.5, 1))
	b := s.join(reg("b", 60, 0.5, 1))
	var freed []time.Duration
	for range 30 {
		cmd := role(t, roleLooper, s.clientSocket(), "")
		<-time.After(rand.N(50 * time.Millisecond))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		eventually(t, "it is gone", func() bool { return s.status().GPUs[0].Clients[0].State == "absent" })
		lease := s.lease(b)
		freed = append(freed, time.Since(killed))
		if err := b.Return(lease, time.Microsecond, false); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(freed)
	t.Logf("free after %v at the median, %v at most", freed[len(freed)/2], freed[len(freed)-1])
	if freed[len(freed)/2] > 100*time.Millisecond {
		t.Error("at the median that is more than a window")
	}
	eventually(t, "b alone is left", func() (alone bool) { // the daemon may read the hello of a process after its death
		_ = s.d.locked(func() { alone = len(slices.Collect(s.d.registry.sessions())) == 1 })
		return alone
	})
}

// crowd simulates programs that reconnect to every new daemon.
type crowd struct {
	launches [50]atomic.Int64
	holders  atomic.Int64
	worst    atomic.Int64 // largest number of simultaneous holders since it was set to 0
	linked   atomic.Int64
	programs sync.WaitGroup
}

// run runs one program. Like the preload library, it connects, launches while it holds a lease, and
// closes its gate when the connection ends.
func (c *crowd) run(ctx context.Context, socket string, n int) {
	id := fmt.Sprintf("i%d", n)
	for ctx.Err() == nil {
		client, err := tokentest.Dial(socket, id, "secret of "+id, 0)
		if err != nil {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		c.linked.Add(1)
		c.work(ctx, client, n)
		c.linked.Add(-1)
		client.Close()
	}
}

func (c *crowd) work(ctx context.Context, client *tokentest.Client, n int) {
	for ctx.Err() == nil && client.Request() == nil {
		lease, err := client.Await(ctx)
		if err != nil {
			return
		}
		if held := c.holders.Add(1); held > c.worst.Load() {
			c.worst.Store(held)
		}
		start := time.Now()
		for client.Gate() == lease && time.Since(start) < 2*time.Millisecond {
			c.launches[n].Add(1)
			time.Sleep(100 * time.Microsecond)
		}
		c.holders.Add(-1)
		if client.Return(lease, time.Since(start), false) != nil {
			return
		}
	}
}

func (c *crowd) sum() (n int64) {
	for i := range c.launches {
		n += c.launches[i].Load()
	}
	return n
}

// TestRestarts kills the daemon repeatedly while fifty programs run. Without a daemon, no program
// launches. The next daemon restores the instances, and all programs continue; the number of
// simultaneous leases never exceeds the number that fit.
func TestRestarts(t *testing.T) {
	socket := filepath.Join(runDir(t), "token.sock")
	var c crowd
	ctx, stop := context.WithCancel(context.Background())
	defer c.programs.Wait()
	defer stop()
	for round := range 4 {
		s, daemon := serveApart(t, socket)
		if round == 0 {
			for n := range c.launches {
				s.register(reg(fmt.Sprintf("i%d", n), 50, 0.02, 1))
				c.programs.Go(func() { c.run(ctx, s.clientSocket(), n) })
			}
		}
		eventually(t, "all are back", func() bool { return c.linked.Load() == int64(len(c.launches)) })
		c.worst.Store(0)
		var before [len(c.launches)]int64
		for n := range c.launches {
			before[n] = c.launches[n].Load()
		}
		eventually(t, "all go on", func() bool {
			for n := range c.launches {
				if c.launches[n].Load() == before[n] {
					return false
				}
			}
			return true
		})
		for _, row := range s.status().GPUs[0].Clients {
			if row.State == "absent" {
				t.Errorf("round %d: %s is absent", round, row.Instance)
			}
		}
		if err := daemon.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all notice", func() bool { return c.linked.Load() == 0 && c.holders.Load() == 0 })
		if worst := c.worst.Load(); worst > 2 {
			t.Errorf("round %d: %d held leases at once, of 50%% each, want at most 2", round, worst)
		}
		launched := c.sum()
		_ = daemon.Wait()
		if again := c.sum(); again != launched {
			t.Errorf("round %d: %d launches without a daemon", round, again-launched)
		}
	}
}
