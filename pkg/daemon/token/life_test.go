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
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	cmd := role(t, roleHolder, s.clientSocket(), "holds")
	got := s.status().GPUs[0].Clients[0]
	if got.PID != cmd.Process.Pid || got.State != "running" || got.MemUsedMiB == 0 {
		t.Errorf("status of process %d: got %+v, want its PID, the state running and used memory", cmd.Process.Pid, got)
	}
	b := s.join(reg("b", share{sm: 60, request: 1, limit: 1}))
	if err := b.Request(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "client b waits for a lease", func() bool { return s.status().GPUs[0].Clients[1].State == "waiting" })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	s.await(b)
	t.Logf("the next lease came %v after the kill", time.Since(killed))
	eventually(t, "instance a is absent", func() bool {
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
	a := first.join(reg("a", share{sm: 60, request: 0.4, limit: 0.8}))
	lease := first.lease(a)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	<-a.Closed
	if atomic.LoadUint32(&a.Slot().Gate) != 0 {
		t.Error("gate without a daemon: got open, want closed")
	}
	remaining, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || strings.Contains(strings.Join(remaining, " "), "token.") {
		t.Errorf("run directory after the daemon's end: got %v, %v; want no sockets or lock", remaining, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "instances", "a.json"))
	if err != nil || strings.Contains(string(text), "secret of a") {
		t.Errorf("record of a: got %s, %v; want one without the secret", text, err)
	}

	second := serve(t, Config{Socket: socket, Private: true})
	row := second.status().GPUs[0].Clients[0]
	want := wire.ClientStatus{Instance: "a", Function: "f-a", SMPct: 60, QuotaRequest: 0.4, QuotaLimit: 0.8, State: "absent", MemLimitMiB: 1024, Why: "not-connected", Reason: reason.New("not-connected")}
	if !reflect.DeepEqual(row, want) {
		t.Errorf("status of the restored instance: got %+v, want %+v", row, want)
	}
	c, err := second.dial("a", 5<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := second.lease(c); got == lease {
		t.Errorf("lease of the next daemon: got number %d again, want another one", got)
	}
	if got := second.status().GPUs[0].Clients[0].MemUsedMiB; got != 5 {
		t.Errorf("memory of the process that connected again: got %v MiB, want 5", got)
	}
}

// TestFullDisk checks that on a full disk the next daemon serves the known instances, and refuses new
// instances with the reason.
func TestFullDisk(t *testing.T) {
	socket := filepath.Join(runDir(t), "token.sock")
	first := serve(t, Config{Socket: socket})
	first.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `ulimit -f 0; exec "$0"`, os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+roleDaemon, pathEnv+"="+socket)
	start(t, cmd, "serves")
	s := &server{t: t, socket: socket}
	if got := s.row("a").State; got != "absent" {
		t.Errorf("state of the restored instance a: got %s, want absent", got)
	}
	text, err := json.Marshal(reg("b", share{sm: 60, request: 1, limit: 1}))
	if err != nil {
		t.Fatal(err)
	}
	if code, body := s.do("POST", "/v1/instances", string(text)); code != http.StatusInternalServerError || !strings.Contains(body, "save the registration") {
		t.Errorf("register an instance on a full disk: got %d %s, want 500 and save the registration", code, body)
	}
	remaining, err := os.ReadDir(filepath.Join(filepath.Dir(socket), "instances"))
	if err != nil || len(remaining) != 1 {
		t.Errorf("records: got %v, %v; want one", remaining, err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(socket), "client", "b")); err == nil {
		t.Error("folder of the instance that was not registered: got one, want none")
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
			t.Errorf("mode of %s: got %v, %v; want %o", path, info, err, mode)
		}
	}
	if _, err := Open(Config{Socket: socket}); err == nil || !strings.Contains(err.Error(), "another gfaas-tokend serves") {
		t.Errorf("second daemon: got error %v, want another gfaas-tokend serves …", err)
	}
	s.status() // the first still serves
	file := filepath.Join(runDir(t), "token.sock")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Socket: file}); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("socket path of a file: got error %v, want … is not a socket", err)
	}
}

func TestExitWhenIdle(t *testing.T) {
	socket := filepath.Join(runDir(t), "token.sock")
	first := serve(t, Config{Socket: socket})
	first.register(reg("a", share{sm: 60, request: 1, limit: 1}))
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
		t.Fatal("daemon with a client: got an exit, want it running")
	case <-time.After(100 * time.Millisecond):
	}
	a.Close()
	if code, _ := s.do("DELETE", "/v1/instances/a", ""); code != http.StatusNoContent {
		t.Fatalf("unregister instance a: got %d, want 204", code)
	}
	select {
	case err := <-s.ends:
		s.ends <- err
	case <-time.After(patience):
		t.Fatalf("the idle daemon did not end within %v", patience)
	}
	if _, err := os.Stat(s.socket); err == nil {
		t.Errorf("socket %s after the daemon's end: got one, want none", s.socket)
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
	r := reg("a", share{sm: 60, request: 1, limit: 1})
	r.OwnerPID = owner.Process.Pid
	a := s.join(r)
	_ = in.Close()
	_ = owner.Wait()
	s.d.tidy()
	if len(s.status().GPUs[0].Clients) != 1 {
		t.Error("instance without an owner while a process is connected: got it removed, want it registered")
	}
	a.Close()
	eventually(t, "the instance without an owner is removed", func() bool {
		s.d.tidy()
		return len(s.status().GPUs[0].Clients) == 0
	})
	bad, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if code, body := s.do("POST", "/v1/instances", string(bad)); code != http.StatusBadRequest || !strings.Contains(body, "is no process") {
		t.Errorf("register with an ended owner: got %d %s, want 400 and … is no process", code, body)
	}
}

func TestStaleRegistrations(t *testing.T) {
	dir := runDir(t)
	socket := filepath.Join(dir, "token.sock")
	first := serve(t, Config{Socket: socket})
	first.register(reg("keep", share{sm: 60, request: 1, limit: 1}))
	r := reg("stale", share{sm: 60, request: 1, limit: 1})
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
	eventually(t, "the stale instance is removed", func() bool {
		_ = second.d.locked(func() { second.d.registry.opened = second.d.registry.opened.Add(-reconnectTime) })
		second.d.tidy()
		return len(second.status().GPUs[0].Clients) == 1
	})
	if _, err := os.Stat(path); err == nil {
		t.Errorf("record %s of the stale instance: got one, want none", path)
	}
	if got := second.status().GPUs[0].Clients[0].Instance; got != "keep" {
		t.Errorf("remaining instance: got %s, want keep", got)
	}
}

// TestRegistrationWhileEnding checks that a pending registration does not delay the shutdown.
func TestRegistrationWhileEnding(t *testing.T) {
	s := serve(t, Config{})
	text, err := json.Marshal(reg("late", share{sm: 60, request: 1, limit: 1}))
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
		t.Fatalf("answer to the header: got %q, %v; want 100 Continue", line, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	eventually(t, "the daemon has closed its sockets", func() bool { return !chassis.Answers("unix", s.socket) })
	_, _ = conn.Write(text)
	answer, _ := io.ReadAll(conn)
	t.Logf("answer: %q", answer)
	select {
	case err := <-stopped:
		stopped <- err
	case <-time.After(10 * time.Second):
		t.Fatal("the daemon did not end within 10s")
	}
}

// TestRunDirectoryReplaced checks that a daemon whose run directory was removed exits after its last
// process, and does not remove files of the daemon that serves the new directory.
func TestRunDirectoryReplaced(t *testing.T) {
	first := serve(t, Config{Socket: filepath.Join(runDir(t), "token.sock")})
	a := first.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	first.join(reg("b", share{sm: 60, request: 1, limit: 1})).Close()
	if err := os.RemoveAll(filepath.Dir(first.socket)); err != nil {
		t.Fatal(err)
	}
	second := serve(t, Config{Socket: first.socket})
	second.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	second.register(reg("b", share{sm: 60, request: 1, limit: 1}))
	first.lease(a) // a continues
	_ = first.d.locked(func() { first.d.registry.remove(first.d.registry.instances["b"], "a test") })
	a.Close()
	select {
	case err := <-first.ends:
		first.ends <- err
	case <-time.After(patience):
		t.Fatalf("the daemon whose run directory was replaced did not end within %v", patience)
	}
	for _, path := range []string{second.socket, second.clientSocket(), filepath.Join(second.folder("a"), "token.sock"), filepath.Join(second.folder("b"), "token.sock"), filepath.Join(filepath.Dir(second.socket), "token.lock")} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("file of the second daemon after the end of the first: %v", err)
		}
	}
	c, err := second.dial("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// TestCleanupBeforeNextDaemon checks that the daemon calls Cleanup before another daemon can acquire the run
// directory.
func TestCleanupBeforeNextDaemon(t *testing.T) {
	socket := filepath.Join(runDir(t), "token.sock")
	cleanedUp := false
	s := serve(t, Config{Socket: socket, Cleanup: func() {
		cleanedUp = true
		if f, err := lockfile.Acquire(filepath.Join(filepath.Dir(socket), "token.lock")); err == nil {
			t.Errorf("lock of the run directory during Cleanup: got %v, %v; want it held by the daemon", f, err)
		}
		if chassis.Answers("unix", socket) {
			t.Error("control socket during Cleanup: got an answer, want none")
		}
	}})
	if err := s.stop(); err != nil || !cleanedUp {
		t.Errorf("stop the daemon: got %v, Cleanup called %v; want no error, true", err, cleanedUp)
	}
}

// TestKillsAtRandomPoints kills processes at any point of their lives, from before their hello until
// they drain. Their leases must be free at once.
func TestKillsAtRandomPoints(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", share{sm: 60, request: 0.5, limit: 1}))
	b := s.join(reg("b", share{sm: 60, request: 0.5, limit: 1}))
	var freed []time.Duration
	for range 30 {
		cmd := role(t, roleLooper, s.clientSocket(), "")
		<-time.After(rand.N(50 * time.Millisecond))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		eventually(t, "instance a is absent", func() bool { return s.status().GPUs[0].Clients[0].State == "absent" })
		lease := s.lease(b)
		freed = append(freed, time.Since(killed))
		if err := b.Return(lease, time.Microsecond, tokentest.WantsNoMore); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(freed)
	t.Logf("free after %v at the median, %v at most", freed[len(freed)/2], freed[len(freed)-1])
	if freed[len(freed)/2] > 100*time.Millisecond {
		t.Errorf("median time until the lease was free: got %v, want at most a window of 100ms", freed[len(freed)/2])
	}
	eventually(t, "only the process of instance b is connected", func() (alone bool) { // the daemon may read the hello of a process after its death
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
		if client.Return(lease, time.Since(start), tokentest.WantsNoMore) != nil {
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
				s.register(reg(fmt.Sprintf("i%d", n), share{sm: 50, request: 0.02, limit: 1}))
				c.programs.Go(func() { c.run(ctx, s.clientSocket(), n) })
			}
		}
		eventually(t, "all programs are connected again", func() bool { return c.linked.Load() == int64(len(c.launches)) })
		c.worst.Store(0)
		var before [len(c.launches)]int64
		for n := range c.launches {
			before[n] = c.launches[n].Load()
		}
		eventually(t, "all programs have launched kernels again", func() bool {
			for n := range c.launches {
				if c.launches[n].Load() == before[n] {
					return false
				}
			}
			return true
		})
		for _, row := range s.status().GPUs[0].Clients {
			if row.State == "absent" {
				t.Errorf("round %d: state of %s: got absent, want it connected", round, row.Instance)
			}
		}
		if err := daemon.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "no program is connected or holds a lease", func() bool { return c.linked.Load() == 0 && c.holders.Load() == 0 })
		if worst := c.worst.Load(); worst > 2 {
			t.Errorf("round %d: simultaneous leases of 50%% of the SMs each: got %d, want at most 2", round, worst)
		}
		launched := c.sum()
		_ = daemon.Wait()
		if again := c.sum(); again != launched {
			t.Errorf("round %d: launches without a daemon: got %d, want 0", round, again-launched)
		}
	}
}
