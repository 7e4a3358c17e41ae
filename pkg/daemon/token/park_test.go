package token

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// fakeMover is a fake Mover that records its calls.
type fakeMover struct {
	mu        sync.Mutex
	calls     []string
	fails     map[string]error // by operation
	free      gpu.Bytes
	freeCalls atomic.Int32 // number of calls of Free
	release   chan bool    // if set, Park waits for a value
}

func (m *fakeMover) call(operation string, pids []int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, fmt.Sprint(operation, " ", len(pids)))
	return m.fails[operation]
}

func (m *fakeMover) Check(context.Context, bool) error { return m.call("check", nil) }

func (m *fakeMover) Park(_ context.Context, _ bool, pids []int) error {
	if m.release != nil {
		<-m.release
	}
	return m.call("out", pids)
}

func (m *fakeMover) Unpark(_ context.Context, _ bool, pids []int) error { return m.call("back", pids) }

func (m *fakeMover) Free(string) (gpu.Bytes, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.freeCalls.Add(1)
	return m.free, nil
}

func (m *fakeMover) setFree(free gpu.Bytes) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free = free
}

// drainCalls returns the operations since its last call.
func (m *fakeMover) drainCalls() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	text := strings.Join(m.calls, ", ")
	m.calls = nil
	return text
}

// TestPark checks that the memory of an idle instance moves to the host and back once. A busy
// instance is not parked; memory that does not fit stays on the host; and a failed move is undone.
func TestPark(t *testing.T) {
	m := &fakeMover{free: gpu.GiB, fails: map[string]error{}}
	s := serve(t, Config{Mover: m})
	a := s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	atomic.StoreUint64(&a.Slot().MemUsed, 600<<20)
	parked := func(want float64) {
		t.Helper()
		if row := s.status().GPUs[0].Clients[0]; row.MemUsedMiB != 600 || row.MemParkedMiB != want {
			t.Errorf("status of a: got %+v, want 600 MiB used and %v MiB parked", row, want)
		}
	}
	ask := func(method string, code int, text, calls string) {
		t.Helper()
		if got, body := s.do(method, "/v1/instances/a/parked", ""); got != code || !strings.Contains(body, text) {
			t.Errorf("%s parked: got %d %s, want %d %s", method, got, body, code, text)
		}
		if got := m.drainCalls(); got != calls {
			t.Errorf("moves after %s parked: got %q, want %q", method, got, calls)
		}
	}
	parked(0)
	ask("DELETE", 204, "", "")
	ask("PUT", 204, "", "out 1")
	parked(600)
	m.setFree(599 * gpu.MiB)
	ask("DELETE", 409, "does not fit", "")
	parked(600)
	m.setFree(600 * gpu.MiB)
	ask("DELETE", 204, "", "back 1")
	parked(0)

	m.fails["out"] = errors.New("out of luck")
	m.setFree(0) // moving back after a failed Park needs no free memory
	ask("PUT", 502, "out of luck", "out 1, back 1")
	parked(0)
	clear(m.fails)
	m.setFree(gpu.GiB)

	if err := a.Request(); err != nil {
		t.Fatal(err)
	}
	lease, err := a.Await(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask("PUT", 409, "work", "")
	if err := a.Return(lease, time.Millisecond, tokentest.WantsNoMore); err != nil {
		t.Fatal(err)
	}
	ask("PUT", 204, "", "out 1")
	if code, body := s.do("PUT", "/v1/instances/b/parked", ""); code != 404 {
		t.Errorf("park an unknown instance: got %d %s, want 404", code, body)
	}
	if code, body := s.do("GET", "/v1/parking?gpu=sim", ""); code != 204 {
		t.Errorf("GET /v1/parking of GPU sim: got %d %s, want 204", code, body)
	}
}

// TestParkLost checks that a process whose memory cannot be moved back is killed.
func TestParkLost(t *testing.T) {
	m := &fakeMover{free: gpu.GiB, fails: map[string]error{"back": errors.New("out of memory")}}
	s := serve(t, Config{Mover: m})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	idler := role(t, roleIdler, s.clientSocket(), "idles")
	if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != 204 {
		t.Fatalf("park instance a: got %d %s, want 204", code, body)
	}
	code, body := s.do("DELETE", "/v1/instances/a/parked", "")
	if code != 502 || !strings.Contains(body, "out of memory") || m.drainCalls() != "out 1, back 1, back 1" {
		t.Errorf("unpark instance a: got %d %s and the moves %q, want 502, out of memory and two attempts to move it back", code, body, m.drainCalls())
	}
	if procfs.Alive(idler.Process.Pid) {
		t.Error("process whose memory cannot be moved back: got it running, want it killed")
	}
}

// TestRequestUnparks checks that the memory of a process is moved back if the process requests the GPU
// while it is parked or being moved.
func TestRequestUnparks(t *testing.T) {
	m := &fakeMover{free: gpu.GiB}
	s := serve(t, Config{Mover: m})
	a := s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	requestGPU := func() {
		t.Helper()
		if err := a.Request(); err != nil {
			t.Fatal(err)
		}
		lease, err := a.Await(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Return(lease, time.Millisecond, tokentest.WantsNoMore); err != nil {
			t.Fatal(err)
		}
	}
	if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != 204 {
		t.Fatalf("park instance a: got %d %s, want 204", code, body)
	}
	requestGPU()
	eventually(t, "the memory of a is on the GPU again", func() bool { return strings.HasSuffix(m.drainCalls(), "back 1") })

	atomic.StoreUint64(&a.Slot().MemUsed, 1<<20)
	m.setFree(0) // there is no room, so it waits outside the GPU
	if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != 204 {
		t.Fatalf("park instance a: got %d %s, want 204", code, body)
	}
	if err := a.Request(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the daemon has tried again to unpark a", func() bool { return m.freeCalls.Load() > 2 })
	if a.Gate() != 0 || m.drainCalls() != "out 1" {
		t.Errorf("without room on the GPU: got gate %d and the moves %q, want gate 0 and out 1", a.Gate(), m.drainCalls())
	}
	m.setFree(gpu.GiB)
	lease, err := a.Await(t.Context())
	if err == nil {
		err = a.Return(lease, time.Millisecond, tokentest.WantsNoMore)
	}
	if err != nil {
		t.Fatal(err)
	}

	m.release = make(chan bool)
	answered := make(chan bool)
	go func() {
		s.do("PUT", "/v1/instances/a/parked", "")
		close(answered)
	}()
	m.release <- true // the move has started; the process requests the GPU now or a little later
	requestGPU()
	<-answered
	requestGPU()
	eventually(t, "the memory of a is on the GPU again", func() bool { return strings.HasSuffix(m.drainCalls(), "back 1") })
}

// TestParkedDies checks that if a parked process ends, another process of the instance that has
// requested the GPU meanwhile gets it.
func TestParkedDies(t *testing.T) {
	m := &fakeMover{free: gpu.GiB}
	s := serve(t, Config{Mover: m})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	parked := role(t, roleIdler, s.clientSocket(), "idles")
	if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != 204 {
		t.Fatalf("park instance a: got %d %s, want 204", code, body)
	}
	m.setFree(-1) // less than the 0 bytes that the instance needs
	b, err := s.dial("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Request(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the daemon has tried to unpark a", func() bool { return m.freeCalls.Load() > 0 })
	if b.Gate() != 0 {
		t.Errorf("gate without room on the GPU: got %d, want 0", b.Gate())
	}
	_ = parked.Process.Kill()
	_ = parked.Wait()
	s.await(b)
}

// TestUnparkIgnoresReusedPID checks that a process with the PID of an ended parked process is not
// moved.
func TestUnparkIgnoresReusedPID(t *testing.T) {
	m := &fakeMover{free: gpu.GiB}
	s := serve(t, Config{Mover: m})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	other := role(t, roleIdler, s.clientSocket(), "idles")
	if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != 204 {
		t.Fatalf("park instance a: got %d %s, want 204", code, body)
	}
	if err := s.d.locked(func() { s.d.registry.instances["a"].parked.startTimes[other.Process.Pid]-- }); err != nil { // simulates an earlier process with the same PID
		t.Fatal(err)
	}
	if code, body := s.do("DELETE", "/v1/instances/a/parked", ""); code != 204 || strings.Contains(m.drainCalls(), "back 1") {
		t.Errorf("unpark instance a, whose process has ended: got %d %s and the moves %q, want 204 and none back", code, body, m.drainCalls())
	}
}

// TestParkWithoutRecord checks that a process gets the GPU if it requests it while the record of the
// parking cannot be written.
func TestParkWithoutRecord(t *testing.T) {
	s := serve(t, Config{Mover: &fakeMover{free: gpu.GiB}})
	a := s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	if err := os.Mkdir(s.d.registry.records.path("a")+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	s.d.registry.changes.Lock() // delays the record until the process has requested the GPU
	answer := make(chan int)
	go func() {
		code, _ := s.do("PUT", "/v1/instances/a/parked", "")
		answer <- code
	}()
	is := func(what string, so func(*instance) bool) {
		eventually(t, what, func() (is bool) {
			_ = s.d.locked(func() { is = so(s.d.registry.instances["a"]) })
			return is
		})
	}
	is("instance a is parked", func(i *instance) bool { return len(i.parked.pids) > 0 })
	if err := a.Request(); err != nil {
		t.Fatal(err)
	}
	is("a process of instance a waits for a lease", func(i *instance) bool { return len(i.waiting()) > 0 })
	s.d.registry.changes.Unlock()
	if code := <-answer; code != 500 {
		t.Errorf("park instance a without a record: got %d, want 500", code)
	}
	s.await(a)
}

// TestParkedStateIsRestored checks that the next daemon restores the parked state before a process has
// connected again.
func TestParkedStateIsRestored(t *testing.T) {
	m := &fakeMover{free: gpu.GiB}
	s := serve(t, Config{Mover: m})
	a := s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != 204 {
		t.Fatalf("park instance a: got %d %s, want 204", code, body)
	}
	s.register(reg("a", share{sm: 30, request: 1, limit: 1})) // registers the same instance again
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	a.Close()
	next := serve(t, Config{Socket: s.socket, Mover: m})
	if code, body := next.do("DELETE", "/v1/instances/a/parked", ""); code != 204 || m.drainCalls() != "out 1, back 1" {
		t.Errorf("unpark instance a at the next daemon: got %d %s and the moves %q, want 204 and out 1, back 1", code, body, m.drainCalls())
	}
	if text, err := os.ReadFile(next.d.registry.records.path("a")); err != nil || strings.Contains(string(text), "parked") {
		t.Errorf("record after unparking: got %s, %v; want one without parked", text, err)
	}
}

// TestParkWithoutMover checks the error of a daemon without a Mover.
func TestParkWithoutMover(t *testing.T) {
	s := serve(t, Config{})
	s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	for _, path := range []string{"GET /v1/parking", "PUT /v1/instances/a/parked"} {
		method, path, _ := strings.Cut(path, " ")
		if code, body := s.do(method, path, ""); code != 501 || !strings.Contains(body, errNoMover.Error()) {
			t.Errorf("%s %s: got %d %s, want 501 %v", method, path, code, body, errNoMover)
		}
	}
}
