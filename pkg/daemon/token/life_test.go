package token

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/wire"
)

// helperEnv makes the test binary a process that takes a lease and hangs.
const helperEnv = "TOKENTEST_SOCKET"

func helper() int {
	c, err := tokentest.Dial(os.Getenv(helperEnv), "a", "secret of a", 7)
	if err == nil {
		err = c.Request()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for c.Gate() == 0 {
		<-time.After(time.Millisecond)
	}
	fmt.Println("holds")
	select {}
}

// TestKilledHolderFreesItsLease kills a process that holds a lease while
// another waits.
func TestKilledHolderFreesItsLease(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", 60, 1, 1))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+s.d.clientSocket())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "holds\n" {
		t.Fatal(line, err)
	}
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
	_ = cmd.Wait()
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
	if a.Gate() != 0 {
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
	want := wire.ClientStatus{Instance: "a", Function: "f-a", SMPct: 60, QuotaRequest: 0.4, QuotaLimit: 0.8, State: "absent", MemLimitMiB: 1024}
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
	s := serve(t, Config{ExitWhenIdle: 30 * time.Millisecond})
	a := s.join(reg("a", 60, 1, 1))
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
	if _, err := os.Stat(s.d.cfg.Socket); err == nil {
		t.Error("the socket is still there")
	}
}

func TestUnregisterGatesProcesses(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", 60, 1, 1))
	s.lease(a)
	if code, _ := s.do("DELETE", "/v1/instances/a", ""); code != http.StatusNoContent {
		t.Fatal("unregister:", code)
	}
	<-a.Gone
	if a.Gate() != 0 {
		t.Error("the gate stayed open")
	}
	if _, err := s.dial("a", 0); err == nil {
		t.Error("a process of a removed instance got in")
	}
	if left, _ := filepath.Glob(filepath.Join(s.d.instancesDir(), "*")); len(left) != 0 {
		t.Error("left on disk:", left)
	}
	if code, _ := s.do("DELETE", "/v1/instances/a", ""); code != http.StatusNotFound {
		t.Error("unregister again:", code)
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
	if err := s.d.call(s.d.lookAfter); err != nil {
		t.Fatal(err)
	}
	if len(s.status().GPUs[0].Clients) != 1 {
		t.Error("the instance went while a process of it was connected")
	}
	a.Close()
	eventually(t, "the instance goes", func() bool {
		_ = s.d.call(s.d.lookAfter)
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
		_ = second.d.call(func() { second.d.epoch = second.d.epoch.Add(-rejoin); second.d.lookAfter() })
		return len(second.status().GPUs[0].Clients) == 1
	})
	if _, err := os.Stat(path); err == nil {
		t.Error("its file is still there")
	}
	if got := second.status().GPUs[0].Clients[0].Instance; got != "keep" {
		t.Errorf("%s was kept", got)
	}
}

func TestControlRefuses(t *testing.T) {
	s := serve(t, Config{})
	s.join(reg("a", 60, 1, 1))
	for name, tt := range map[string]struct {
		body string
		code int
		want string
	}{
		"not JSON":   {"{", 400, "not a registration"},
		"no id":      {`{"secret":"s","gpu":"sim","sm_pct":1,"quota_request":1,"quota_limit":1}`, 400, "instance"},
		"path":       {`{"instance":"../x","secret":"s","gpu":"sim","sm_pct":1,"quota_request":1,"quota_limit":1}`, 400, "instance"},
		"sm":         {`{"instance":"x","secret":"s","gpu":"sim","sm_pct":101,"quota_request":1,"quota_limit":1}`, 400, "SM share 101"},
		"gpu":        {`{"instance":"x","secret":"s","gpu":"tpu","sm_pct":1,"quota_request":1,"quota_limit":1}`, 400, "is not a GPU"},
		"new secret": {`{"instance":"a","secret":"s","gpu":"sim","sm_pct":1,"quota_request":1,"quota_limit":1}`, 409, "has 1 processes"},
		"long":       {`{"instance":"` + strings.Repeat("x", maxBody) + `"}`, 413, "at most"},
	} {
		var p wire.Problem
		code, body := s.do("POST", "/v1/instances", tt.body)
		if err := json.Unmarshal([]byte(body), &p); err != nil || code != tt.code || !strings.Contains(p.Message, tt.want) {
			t.Errorf("%s: %d %s, want %d with %q", name, code, body, tt.code, tt.want)
		}
	}
}

func TestReRegisterChangesTheSlice(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", 60, 1, 1))
	r := reg("a", 30, 0.5, 0.5)
	r.MemLimit = 2 << 30
	s.register(r)
	if got := s.status().GPUs[0].Clients[0]; got.SMPct != 30 || got.QuotaLimit != 0.5 || a.MemLimit() != 2<<30 {
		t.Errorf("after: %+v, page limit %d", got, a.MemLimit())
	}
}

func TestWeb(t *testing.T) {
	s := serve(t, Config{Listen: "127.0.0.1:0"})
	a := s.join(reg("a", 60, 1, 1))
	if err := a.Return(s.lease(a), time.Millisecond, false); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string, string) {
		req, err := http.NewRequest("GET", "http://"+s.d.WebAddr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "application/openmetrics-text")
		answer, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, answer.Header.Get("Content-Type"), string(text)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 200, "/v1/status": 404} {
		if code, _, _ := get(path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
	_, kind, text := get("/metrics")
	if !strings.HasPrefix(kind, "application/openmetrics-text") {
		t.Error("content type", kind)
	}
	for _, want := range []string{
		`gfaas_token_grants_total{gpu="sim"} 1.0`, `gfaas_token_clients{gpu="sim",state="idle"} 1.0`,
		`gfaas_token_instances{gpu="sim"} 1.0`, `gfaas_token_wait_seconds_count{gpu="sim"} 1`, "# EOF",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

func TestReload(t *testing.T) {
	s := serve(t, Config{})
	a, b := s.join(reg("a", 60, 1, 1)), s.join(reg("b", 40, 1, 1))
	lease := s.lease(a)
	s.lease(b)
	if err := s.d.Reload(Settings{Window: 20 * time.Millisecond, SMLimit: 70}); err != nil {
		t.Fatal(err)
	}
	if got := s.status().WindowMS; got != 20 {
		t.Errorf("window %v ms, want 20", got)
	}
	if err := a.Return(lease, time.Millisecond, true); err != nil {
		t.Fatal(err)
	}
	<-b.Ends // 60 and 40 percent no longer fit together
}

func TestSendNeverWaits(t *testing.T) {
	s := serve(t, Config{})
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: s.d.clientSocket(), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var server net.Conn
	eventually(t, "the daemon has the connection", func() bool {
		_ = s.d.call(func() {
			for c := range s.d.open {
				server = c
			}
		})
		return server != nil
	})
	for n := 0; ; n++ {
		if n > 1e5 {
			t.Fatal("a peer that reads nothing takes all messages")
		}
		if err := send(server.(*net.UnixConn), wire.LeaseEnd{Lease: 1}, nil); err != nil {
			break
		}
	}
}

func TestPageCannotBeCutShort(t *testing.T) {
	p, err := newPage("a", 5)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for _, size := range []int64{0, 4096, 1 << 20} {
		if err := unix.Ftruncate(int(p.file.Fd()), size); err == nil {
			t.Errorf("the page became %d bytes", size)
		}
	}
	p.setGate(63, 9)
	if got := atomic.LoadUint32(&p.slot(63).Gate); got != 9 {
		t.Errorf("gate %d", got)
	}
}
