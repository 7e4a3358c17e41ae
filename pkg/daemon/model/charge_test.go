package model_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/model"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/procfs"
	tokens "github.com/gfaas/gfaas/pkg/wire"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// slice is a token daemon with one slice that contains all processes.
type slice struct {
	t     *testing.T
	limit gpu.Bytes

	mu          sync.Mutex
	unavailable bool // the daemon does not answer
	noProcess   bool // no process is in the slice
	requests    []tokens.Stored
	live        map[*counted]gpu.Bytes
}

type counted struct {
	of   *slice
	done chan struct{}
	once sync.Once
}

type unavailableError struct{ error }

func (unavailableError) Unavailable() bool { return true }

func (s *slice) Count(_ context.Context, r tokens.Stored) (model.Counted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	me, err := procfs.Read(os.Getpid())
	if err != nil || r.PID != os.Getpid() || r.Start != me.Start || r.Sender != os.Getpid() || r.GPU != "sim" {
		s.t.Errorf("count request: got %+v, %v; want PID and Sender %d, Start %v and GPU sim", r, err, os.Getpid(), me.Start)
	}
	switch {
	case s.unavailable:
		return nil, unavailableError{errors.New("no token daemon")}
	case s.noProcess:
		return nil, nil
	case !r.Allocated && s.used()+r.Bytes > s.limit:
		return nil, wire.Errorf(wire.CodeSliceMemory, "out of memory")
	}
	c := &counted{of: s, done: make(chan struct{})}
	s.requests, s.live[c] = append(s.requests, r), r.Bytes
	return c, nil
}

func (s *slice) used() (sum gpu.Bytes) {
	for _, bytes := range s.live {
		sum += bytes
	}
	return sum
}

// counts returns the counted memory and the number of requests.
func (s *slice) counts() (gpu.Bytes, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used(), len(s.requests)
}

// restart ends all counts, like the end of a token daemon.
func (s *slice) restart(unavailable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unavailable = unavailable
	for c := range s.live {
		c.once.Do(func() { close(c.done) })
	}
	clear(s.live)
}

func (c *counted) Done() <-chan struct{} { return c.done }

func (c *counted) Close() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	delete(c.of.live, c)
	c.once.Do(func() { close(c.done) })
}

// inSlice starts a daemon whose clients are in a slice of 2 MiB.
func inSlice(t *testing.T, change ...func(*model.Config)) (*world, *slice) {
	s := &slice{t: t, limit: 2 * gpu.MiB, live: map[*counted]gpu.Bytes{}}
	return serve(t, append(change, func(c *model.Config) { c.Slices, c.GPUName = s, "sim" })...), s
}

// storing returns a client that stores a model of the given size, or expects the given error code.
func (w *world) storing(code, name string, size gpu.Bytes) *client {
	w.t.Helper()
	f, err := os.Open(w.write("manifest", []byte(`{"tensors":{}}`)))
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	c := w.client("blue")
	c.call(code, wire.Request{Op: wire.OpStore, Name: name, Size: int64(size)}, f)
	return c
}

// TestStoreCountsAgainstSlice checks that a store counts until it is committed, abandoned or refused. A store
// beyond the limit allocates nothing.
func TestStoreCountsAgainstSlice(t *testing.T) {
	w, s := inSlice(t)
	checkCounted := func(what string, want gpu.Bytes) {
		t.Helper()
		if got, _ := s.counts(); got != want {
			t.Errorf("%s: counted memory: got %v, want %v", what, got, want)
		}
	}
	grain := w.gpu.Granularity()
	first := w.storing("", "one", gpu.MiB-1)
	checkCounted("a store", (gpu.MiB-1+grain-1)/grain*grain)
	second := w.storing("", "two", gpu.MiB)
	checkCounted("two", 2*gpu.MiB)
	w.storing(wire.CodeSliceMemory, "three", 1)
	checkCounted("one refused", 2*gpu.MiB)
	if used := w.gpu.Used(); used != 2*gpu.MiB {
		t.Errorf("GPU memory after the refused store: got %v, want %v", used, 2*gpu.MiB)
	}
	first.call("", wire.Request{Op: wire.OpCommit, Name: "one"})
	checkCounted("one committed", gpu.MiB) // as soon as the client has the answer
	w.storing("", "three", gpu.MiB).call("", wire.Request{Op: wire.OpCommit, Name: "three"})
	_ = second.Close()
	w.eventually("no store counts after the second was abandoned", func() bool { got, _ := s.counts(); return got == 0 })
	// A store for which there is no room does not count when the client gets the answer.
	held := w.client()
	for _, name := range []string{"one", "three"} {
		held.call("", wire.Request{Op: wire.OpGet, Name: name, Tenant: "blue"})
	}
	s.mu.Lock()
	s.limit = gpu.GiB
	s.mu.Unlock()
	w.storing(wire.CodeCapacity, "large", 5*gpu.MiB)
	checkCounted("larger than the capacity", 0)
	w.storing(wire.CodeBusy, "busy", 3*gpu.MiB)
	checkCounted("no room", 0)
}

// TestStorePausesInSlice checks that a store no longer counts after it ended for lack of a sign of life, or
// after the daemon ended.
func TestStorePausesInSlice(t *testing.T) {
	w, s := inSlice(t, func(c *model.Config) { c.StorePause = 100 * time.Millisecond })
	w.storing("", "s", gpu.MiB)
	w.eventually("the paused store does not count", func() bool { got, n := s.counts(); return got == 0 && n == 1 })
	w, s = inSlice(t)
	w.storing("", "s", gpu.MiB)
	w.stop()
	if got, _ := s.counts(); got != 0 {
		t.Errorf("counted memory after the end of the daemon: got %v, want 0", got)
	}
}

// TestStoreAcrossTokenDaemons checks that a store continues while no token daemon answers, and counts as soon
// as one answers, even beyond the limit.
func TestStoreAcrossTokenDaemons(t *testing.T) {
	w, s := inSlice(t)
	held := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.used() == 3*gpu.MiB && s.requests[len(s.requests)-1].Allocated
	}
	s.unavailable = true
	c := w.storing("", "early", 3*gpu.MiB)
	s.restart(false)
	w.eventually("the early store counts", held)
	for range 2 {
		s.restart(true)
		s.restart(false)
		w.eventually("the early store counts again", held)
	}
	s.restart(true)
	c.call("", wire.Request{Op: wire.OpCommit, Name: "early"})
	s.restart(false)
	_, before := s.counts()
	second := w.storing("", "late", gpu.MiB)
	if got, n := s.counts(); got != gpu.MiB || n != before+1 {
		t.Errorf("got %v of counted memory after %d requests, want 1 MiB after 1", got, n-before)
	}
	s.mu.Lock()
	s.noProcess = true
	s.mu.Unlock()
	_ = second.Close()
	w.eventually("no store counts", func() bool { got, _ := s.counts(); return got == 0 })
	w.storing("", "outside", 1)
}
