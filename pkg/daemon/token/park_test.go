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

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// moved is a Mover that only takes note.
type moved struct {
	mu    sync.Mutex
	did   []string
	fails map[string]error // by what it is to do
	free  gpu.Bytes
	looks atomic.Int32 // how often Free was asked
	holds chan bool    // Out waits for it, if set
}

func (m *moved) do(what string, pids []int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.did = append(m.did, fmt.Sprint(what, " ", len(pids)))
	return m.fails[what]
}

func (m *moved) Check(context.Context, bool) error { return m.do("check", nil) }

func (m *moved) Out(_ context.Context, _ bool, pids []int) error {
	if m.holds != nil {
		<-m.holds
	}
	return m.do("out", pids)
}

func (m *moved) Back(_ context.Context, _ bool, pids []int) error { return m.do("back", pids) }

func (m *moved) Free(string) (gpu.Bytes, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looks.Add(1)
	return m.free, nil
}

func (m *moved) room(free gpu.Bytes) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free = free
}

// said is what it was told since it was asked last.
func (m *moved) said() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	text := strings.Join(m.did, ", ")
	m.did = nil
	return text
}

// TestPark: what an idle instance holds goes to the host and comes back, once each;
// what works stays, what does not fit waits on the host, and what could not go goes on.
func TestPark(t *testing.T) {
	m := &moved{free: gpu.GiB, fails: map[string]error{}}
	s := serve(t, Config{Mover: m})
	a := s.join(reg("a", 60, 1, 1))
	atomic.StoreUint64(&a.Slot().MemUsed, 600<<20)
	parked := func(want float64) {
		t.Helper()
		if row := s.status().GPUs[0].Clients[0]; row.MemUsedMiB != 600 || row.MemParkedMiB != want {
			t.Errorf("%+v, want %v MiB parked", row, want)
		}
	}
	ask := func(method string, code int, why, did string) {
		t.Helper()
		if got, body := s.do(method, "/v1/instances/a/parked", ""); got != code || !strings.Contains(body, why) {
			t.Errorf("%s: %d %s, want %d %s", method, got, body, code, why)
		}
		if got := m.said(); got != did {
			t.Errorf("%s: %q, want %q", method, got, did)
		}
	}
	parked(0)
	ask("DELETE", 204, "", "")
	ask("PUT", 204, "", "out 1")
	parked(600)
	m.room(599 * gpu.MiB)
	ask("DELETE", 409, "do not fit", "")
	parked(600)
	m.room(600 * gpu.MiB)
	ask("DELETE", 204, "", "back 1")
	parked(0)

	m.fails["out"] = errors.New("out of luck")
	m.room(0) // what did not leave needs none
	ask("PUT", 502, "out of luck", "out 1, back 1")
	parked(0)
	clear(m.fails)
	m.room(gpu.GiB)

	if err := a.Request(); err != nil {
		t.Fatal(err)
	}
	lease, err := a.Await(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask("PUT", 409, "work", "")
	if err := a.Return(lease, time.Millisecond, false); err != nil {
		t.Fatal(err)
	}
	ask("PUT", 204, "", "out 1")
	if code, body := s.do("PUT", "/v1/instances/b/parked", ""); code != 404 {
		t.Errorf("%d %s", code, body)
	}
	if code, body := s.do("GET", "/v1/parking?gpu=sim", ""); code != 204 {
		t.Errorf("%d %s", code, body)
	}
}

// TestParkLost: a process that does not come back is killed.
func TestParkLost(t *testing.T) {
	m := &moved{free: gpu.GiB, fails: map[string]error{"back": errors.New("out of memory")}}
	s := serve(t, Config{Mover: m})
	s.register(reg("a", 60, 1, 1))
	idler := role(t, roleIdler, s.clientSocket(), "idles")
	if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != 204 {
		t.Fatal(code, body)
	}
	code, body := s.do("DELETE", "/v1/instances/a/parked", "")
	if code != 502 || !strings.Contains(body, "out of memory") || m.said() != "out 1, back 1, back 1" {
		t.Error(code, body)
	}
	if procfs.Alive(idler.Process.Pid) {
		t.Error("it lives on")
	}
}

// TestParkedAsks: a parked process that asks for the GPU, or did while it was being
// moved, is brought back.
func TestParkedAsks(t *testing.T) {
	m := &moved{free: gpu.GiB}
	s := serve(t, Config{Mover: m})
	a := s.join(reg("a", 60, 1, 1))
	asks := func() {
		t.Helper()
		if err := a.Request(); err != nil {
			t.Fatal(err)
		}
		lease, err := a.Await(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Return(lease, time.Millisecond, false); err != nil {
			t.Fatal(err)
		}
	}
	if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != 204 {
		t.Fatal(code, body)
	}
	asks()
	eventually(t, "it is brought back", func() bool { return strings.HasSuffix(m.said(), "back 1") })

	atomic.StoreUint64(&a.Slot().MemUsed, 1<<20)
	m.room(0) // it waits for some, off the GPU
	if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != 204 {
		t.Fatal(code, body)
	}
	if err := a.Request(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it was tried again", func() bool { return m.looks.Load() > 2 })
	if a.Gate() != 0 || m.said() != "out 1" {
		t.Error("it was let on to the GPU")
	}
	m.room(gpu.GiB)
	lease, err := a.Await(t.Context())
	if err == nil {
		err = a.Return(lease, time.Millisecond, false)
	}
	if err != nil {
		t.Fatal(err)
	}

	m.holds = make(chan bool)
	answered := make(chan bool)
	go func() {
		s.do("PUT", "/v1/instances/a/parked", "")
		close(answered)
	}()
	m.holds <- true // it is on its way, if the process asks now or a little later
	asks()
	<-answered
	asks()
	eventually(t, "it is brought back", func() bool { return strings.HasSuffix(m.said(), "back 1") })
}

// TestParkedDies: when the process ends whose memory is away, another of the instance
// that asked meanwhile has the GPU.
func TestParkedDies(t *testing.T) {
	m := &moved{free: gpu.GiB}
	s := serve(t, Config{Mover: m})
	s.register(reg("a", 60, 1, 1))
	parked := role(t, roleIdler, s.clientSocket(), "idles")
	if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != 204 {
		t.Fatal(code, body)
	}
	m.room(-1) // not even for nothing
	b, err := s.dial("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Request(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is tried", func() bool { return m.looks.Load() > 0 })
	if b.Gate() != 0 {
		t.Error("it was let on to the GPU")
	}
	_ = parked.Process.Kill()
	_ = parked.Wait()
	s.await(b)
}

// TestParkedNumberIsAnothers: nobody is brought back who has the number of a parked
// process that has ended.
func TestParkedNumberIsAnothers(t *testing.T) {
	m := &moved{free: gpu.GiB}
	s := serve(t, Config{Mover: m})
	s.register(reg("a", 60, 1, 1))
	other := role(t, roleIdler, s.clientSocket(), "idles")
	if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != 204 {
		t.Fatal(code, body)
	}
	if err := s.d.locked(func() { s.d.instances["a"].parked.began[other.Process.Pid]-- }); err != nil { // as if of an earlier one
		t.Fatal(err)
	}
	if code, body := s.do("DELETE", "/v1/instances/a/parked", ""); code != 204 || strings.Contains(m.said(), "back 1") {
		t.Error(code, body)
	}
}

// TestParkedNotKept: what asks while it turns out that parking cannot be written down
// has the GPU.
func TestParkedNotKept(t *testing.T) {
	s := serve(t, Config{Mover: &moved{free: gpu.GiB}})
	a := s.join(reg("a", 60, 1, 1))
	if err := os.Mkdir(s.d.recordPath("a")+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	s.d.regMu.Lock() // it is not written before the process asks
	answer := make(chan int)
	go func() {
		code, _ := s.do("PUT", "/v1/instances/a/parked", "")
		answer <- code
	}()
	is := func(what string, so func(*instance) bool) {
		eventually(t, what, func() (is bool) {
			_ = s.d.locked(func() { is = so(s.d.instances["a"]) })
			return is
		})
	}
	is("it is parked", func(i *instance) bool { return len(i.parked.pids) > 0 })
	if err := a.Request(); err != nil {
		t.Fatal(err)
	}
	is("it has asked", func(i *instance) bool { return len(i.waiting()) > 0 })
	s.d.regMu.Unlock()
	if code := <-answer; code != 500 {
		t.Error(code)
	}
	s.await(a)
}

// TestParkedIsKept: the next daemon knows what this one has parked, though none of its
// processes has come back yet.
func TestParkedIsKept(t *testing.T) {
	m := &moved{free: gpu.GiB}
	s := serve(t, Config{Mover: m})
	a := s.join(reg("a", 60, 1, 1))
	if code, body := s.do("PUT", "/v1/instances/a/parked", ""); code != 204 {
		t.Fatal(code, body)
	}
	s.register(reg("a", 30, 1, 1)) // the same again
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	a.Close()
	next := serve(t, Config{Socket: s.socket, Mover: m})
	if code, body := next.do("DELETE", "/v1/instances/a/parked", ""); code != 204 || m.said() != "out 1, back 1" {
		t.Error(code, body)
	}
	if text, err := os.ReadFile(next.d.recordPath("a")); err != nil || strings.Contains(string(text), "parked") {
		t.Errorf("%s, %v", text, err)
	}
}

// TestParkWithoutMover: a daemon that moves nothing says so.
func TestParkWithoutMover(t *testing.T) {
	s := serve(t, Config{})
	s.join(reg("a", 60, 1, 1))
	for _, path := range []string{"GET /v1/parking", "PUT /v1/instances/a/parked"} {
		method, path, _ := strings.Cut(path, " ")
		if code, body := s.do(method, path, ""); code != 501 || !strings.Contains(body, errNoMover.Error()) {
			t.Errorf("%s %s: %d %s", method, path, code, body)
		}
	}
}
