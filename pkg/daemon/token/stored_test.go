package token

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// stores returns a request for memory of a store by a process.
func stores(pid int, bytes gpu.Bytes) wire.Stored {
	s, _ := procfs.Read(pid)
	return wire.Stored{PID: pid, Start: s.Start, GPU: "sim", Bytes: bytes, Sender: os.Getpid()}
}

// store sends a request and returns the status and the answer. With status 200, wait returns when the
// daemon has ended the store, and stop ends it.
func (s *server) store(req wire.Stored) (code int, text string, wait, stop func()) {
	s.t.Helper()
	body, err := json.Marshal(req)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "POST", "http://tokend/v1/stored", strings.NewReader(string(body)))
	if err != nil {
		s.t.Fatal(err)
	}
	answer, err := s.http().Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	in := bufio.NewReader(answer.Body)
	if answer.StatusCode != http.StatusOK {
		text, err := io.ReadAll(in)
		cancel()
		if err != nil {
			s.t.Fatal(err)
		}
		return answer.StatusCode, string(text), nil, nil
	}
	text, err = in.ReadString('\n')
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, text, func() { _, _ = io.Copy(io.Discard, in) }, cancel
}

// counted returns the memory that counts towards the limit of the instance, according to its page.
func (s *server) counted(id string) (bytes gpu.Bytes) {
	_ = s.d.locked(func() { bytes = s.d.registry.instances[id].allocations[0].page.memoryInUse() })
	return bytes
}

func TestStoredCounts(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", share{sm: 10, request: 0.1, limit: 0.1})) // 1 GiB
	s.register(reg("b", share{sm: 10, request: 0.1, limit: 0.1}))
	pid := role(t, roleIdler, s.clientSocket(), "idles").Process.Pid
	code, text, _, stop := s.store(stores(pid, 300*gpu.MiB))
	if code != 200 || !strings.Contains(text, `"instance":"a"`) {
		t.Fatalf("store of 300 MiB: got %d %s, want 200 and instance a", code, text)
	}
	code, _, _, second := s.store(stores(pid, 200*gpu.MiB))
	if got := s.counted("a"); code != 200 || got != 500*gpu.MiB {
		t.Errorf("two stores: got %d, %v counted; want 200, 500 MiB", code, got)
	}
	// The memory of its processes counts in addition.
	for c := range s.d.registry.sessions() {
		atomic.StoreUint64(&c.alloc.page.slot(c.slot).MemUsed, uint64(400*gpu.MiB))
	}
	code, text, _, _ = s.store(stores(pid, 125*gpu.MiB))
	if want := "out of memory: the store needs 125MiB, and instance a uses 900MiB of its 1GiB"; code != 409 || !strings.Contains(text, want) {
		t.Errorf("store beyond the limit: got %d %s, want 409 and %q", code, text, want)
	}
	if got := s.counted("a"); got != 900*gpu.MiB {
		t.Errorf("memory counted after a refusal: got %v, want 900 MiB", got)
	}
	st := s.status().GPUs[0].Clients
	if a := st[0]; a.PID != pid || a.MemStoredMiB != 500 || a.MemUsedMiB != 400 || st[1].MemStoredMiB != 0 {
		t.Errorf("status: got %+v, want 500 MiB stored and 400 MiB used by process %d of a, and 0 stored of b", st, pid)
	}
	code, _, _, fits := s.store(stores(pid, 124*gpu.MiB))
	if code != 200 {
		t.Errorf("store of all remaining memory: got %d, want 200", code)
	}
	// Memory that is allocated already counts even beyond the limit.
	allocated := stores(pid, gpu.GiB)
	allocated.Allocated = true
	code, _, _, held := s.store(allocated)
	if got := s.counted("a"); code != 200 || got != 2*gpu.GiB {
		t.Errorf("store of allocated memory beyond the limit: got %d, %v counted; want 200, 2 GiB", code, got)
	}
	for _, end := range []func(){stop, second, fits, held} {
		end()
	}
	eventually(t, "no memory of stores is counted", func() bool { return s.counted("a") == 400*gpu.MiB })
	if code, _, _, _ = s.store(stores(pid, 600*gpu.MiB)); code != 200 {
		t.Errorf("store after the others have ended: got %d, want 200", code)
	}
}

// TestUncountedAndRefusedStores checks requests whose memory does not count and requests that are refused.
func TestUncountedAndRefusedStores(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", share{sm: 10, request: 0.1, limit: 0.1}))
	pid := role(t, roleIdler, s.clientSocket(), "idles").Process.Pid
	ended := stores(pid, gpu.MiB)
	ended.Start--
	foreign := stores(pid, gpu.MiB)
	foreign.Sender++
	elsewhere := stores(pid, gpu.MiB)
	elsewhere.GPU = "sim:1"
	for _, c := range []struct {
		name string
		req  wire.Stored
		code int
		says string
	}{
		{"in no slice", stores(os.Getpid(), gpu.GiB), 204, ""},
		{"no part of that GPU", elsewhere, 204, ""},
		{"a later process of that number", ended, 410, "has ended"},
		{"no such process", wire.Stored{PID: 1 << 30, GPU: "sim", Bytes: 1, Sender: os.Getpid()}, 410, "has ended"},
		{"other numbers", foreign, 403, "in its own namespace"},
		{"no bytes", stores(pid, 0), 400, "expected more than 0"},
		{"below 0", stores(pid, -1), 400, "is not a size"},
		{"far beyond the limit", stores(pid, maxBytes), 409, "out of memory"},
		{"no process", wire.Stored{GPU: "sim", Bytes: 1, Sender: os.Getpid()}, 400, "expected more than 0"},
		{"no GPU", wire.Stored{PID: pid, Bytes: 1, Sender: os.Getpid()}, 400, "is not a GPU"},
	} {
		if code, text, _, _ := s.store(c.req); code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%s: got %d %s, want %d and %q", c.name, code, text, c.code, c.says)
		}
	}
	for range maxStores {
		if code, text, _, _ := s.store(stores(pid, 1)); code != 200 {
			t.Fatalf("store up to the limit of %d stores: got %d %s, want 200", maxStores, code, text)
		}
	}
	if code, text, _, _ := s.store(stores(pid, 1)); code != 409 || !strings.Contains(text, "which is the limit") {
		t.Errorf("one store more than %d: got %d %s, want 409 and which is the limit", maxStores, code, text)
	}
}

// TestStoredWithoutProcess checks that a process that does not use the driver yet, and a process in a
// container, where the socket has another path, belong to the slice.
func TestStoredWithoutProcess(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", share{sm: 10, request: 0.1, limit: 0.1}))
	s.register(reg("b", share{sm: 10, request: 0.1, limit: 0.1}))
	inside := func(socket, id string, command ...string) int {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = append(os.Environ(), "GFAAS_INSTANCE="+id, "GFAAS_SOCKET="+socket)
		return start(t, cmd, "ready").Process.Pid
	}
	idle := []string{"sh", "-c", "echo ready; read end"}
	cases := map[int]string{inside(s.clientSocket(), "a", idle...): "a"}
	if os.Geteuid() == 0 {
		own := filepath.Join(filepath.Dir(s.clientSocket()), "a")
		mount := []string{"unshare", "-m", "sh", "-c", "mount --bind " + own + " /mnt && echo ready; read end"}
		cases[inside("/mnt/token.sock", "a", mount...)] = "a"
		cases[inside("/mnt/token.sock", "b", mount...)] = "" // an instance whose socket is not mounted there
	}
	for pid, id := range cases {
		code, text, _, _ := s.store(stores(pid, 700*gpu.MiB/gpu.Bytes(len(cases))))
		if want := fmt.Sprintf(`"instance":%q`, id); id == "" && code != 204 || id != "" && (code != 200 || !strings.Contains(text, want)) {
			t.Errorf("store of process %d: got %d %s, want instance %q", pid, code, text, id)
		}
	}
	if st := s.status().GPUs[0].Clients[0]; st.State != "absent" || st.MemStoredMiB == 0 {
		t.Errorf("status of a: got %+v, want the state absent and stored memory", st)
	}
}

// TestStoredEnds checks that a store ends with its instance and with the daemon, and that it can be
// counted again by the next daemon.
func TestStoredEnds(t *testing.T) {
	socket := filepath.Join(runDir(t), "token.sock")
	s := serve(t, Config{Socket: socket})
	s.register(reg("a", share{sm: 10, request: 0.1, limit: 0.1}))
	cmd := exec.Command("sleep", "1000")
	cmd.Env = []string{"GFAAS_INSTANCE=a", "GFAAS_SOCKET=" + s.clientSocket()}
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	eventually(t, "the process runs sleep", func() bool { s, err := procfs.Read(cmd.Process.Pid); return err == nil && s.Name == "sleep" })
	code, _, wait, _ := s.store(stores(cmd.Process.Pid, gpu.MiB))
	if code != 200 {
		t.Fatalf("store of 1 MiB: got %d, want 200", code)
	}
	if code, text := s.do("DELETE", "/v1/instances/a", ""); code != 204 {
		t.Fatalf("unregister instance a: got %d %s, want 204", code, text)
	}
	wait()
	if code, _, _, _ := s.store(stores(cmd.Process.Pid, gpu.MiB)); code != 204 {
		t.Errorf("store without the instance: got %d, want 204", code)
	}
	s.register(reg("a", share{sm: 10, request: 0.1, limit: 0.1}))
	code, _, wait, _ = s.store(stores(cmd.Process.Pid, 1000*gpu.MiB))
	if code != 200 {
		t.Fatalf("store of 1000 MiB: got %d, want 200", code)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	wait()
	s = serve(t, Config{Socket: socket})
	held := stores(cmd.Process.Pid, 1000*gpu.MiB)
	held.Allocated = true
	if code, _, _, _ = s.store(held); code != 200 || s.counted("a") != 1000*gpu.MiB {
		t.Errorf("held store after a restart: got %d, %v counted; want 200, 1000 MiB", code, s.counted("a"))
	}
	if code, text, _, _ := s.store(stores(cmd.Process.Pid, 100*gpu.MiB)); code != 409 {
		t.Errorf("another store beyond the limit: got %d %s, want 409", code, text)
	}
}
