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

// slice is a token daemon with one slice, which all processes are in.
type slice struct {
	t     *testing.T
	limit gpu.Bytes

	mu    sync.Mutex
	away  bool // it does not answer
	none  bool // nobody is in the slice
	asked []tokens.Stored
	live  map[*counted]gpu.Bytes
}

type counted struct {
	of    *slice
	ended chan struct{}
	once  sync.Once
}

type away struct{ error }

func (away) Unavailable() bool { return true }

func (s *slice) Count(_ context.Context, r tokens.Stored) (model.Counted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	me, err := procfs.Read(os.Getpid())
	if err != nil || r.PID != os.Getpid() || r.Start != me.Start || r.Sender != os.Getpid() || r.GPU != "sim" {
		s.t.Errorf("%+v, %v", r, err)
	}
	switch {
	case s.away:
		return nil, away{errors.New("no token daemon")}
	case s.none:
		return nil, nil
	case !r.Held && s.used()+r.Bytes > s.limit:
		return nil, wire.Errorf(wire.CodeSliceMemory, "out of memory")
	}
	c := &counted{of: s, ended: make(chan struct{})}
	s.asked, s.live[c] = append(s.asked, r), r.Bytes
	return c, nil
}

func (s *slice) used() (sum gpu.Bytes) {
	for _, bytes := range s.live {
		sum += bytes
	}
	return sum
}

// counts returns what counts, and how many requests there were.
func (s *slice) counts() (gpu.Bytes, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used(), len(s.asked)
}

// restart ends all counts, as a token daemon does that ends.
func (s *slice) restart(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
	for c := range s.live {
		c.once.Do(func() { close(c.ended) })
	}
	clear(s.live)
}

func (c *counted) Ended() <-chan struct{} { return c.ended }

func (c *counted) Close() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	delete(c.of.live, c)
	c.once.Do(func() { close(c.ended) })
}

// inSlice serves a daemon whose clients are in a slice of 2 MiB.
func inSlice(t *testing.T, change ...func(*model.Config)) (*world, *slice) {
	s := &slice{t: t, limit: 2 * gpu.MiB, live: map[*counted]gpu.Bytes{}}
	return serve(t, append(change, func(c *model.Config) { c.Slices, c.GPUName = s, "sim" })...), s
}

// storing is a client that stores so much.
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

// TestStoreCountsAgainstSlice: a store counts until it is committed, whichever way that
// goes, and one beyond the limit takes nothing.
func TestStoreCountsAgainstSlice(t *testing.T) {
	w, s := inSlice(t)
	counts := func(what string, want gpu.Bytes) {
		t.Helper()
		if got, _ := s.counts(); got != want {
			t.Errorf("%s: %v count, want %v", what, got, want)
		}
	}
	grain := w.gpu.Granularity()
	first := w.storing("", "one", gpu.MiB-1)
	counts("a store", (gpu.MiB-1+grain-1)/grain*grain)
	second := w.storing("", "two", gpu.MiB)
	counts("two", 2*gpu.MiB)
	w.storing(wire.CodeSliceMemory, "three", 1)
	counts("one refused", 2*gpu.MiB)
	if used := w.gpu.Used(); used != 2*gpu.MiB {
		t.Errorf("%v of the GPU are used", used)
	}
	first.call("", wire.Request{Op: wire.OpCommit, Name: "one"})
	counts("one committed", gpu.MiB) // at once
	w.storing("", "three", gpu.MiB).call("", wire.Request{Op: wire.OpCommit, Name: "three"})
	_ = second.Close()
	w.eventually("the dropped one does not count", func() bool { got, _ := s.counts(); return got == 0 })
	// There is no room for it: nothing counts when the client hears so.
	held := w.client()
	for _, name := range []string{"one", "three"} {
		held.call("", wire.Request{Op: wire.OpGet, Name: name, Tenant: "blue"})
	}
	s.mu.Lock()
	s.limit = gpu.GiB
	s.mu.Unlock()
	w.storing(wire.CodeCapacity, "large", 5*gpu.MiB)
	counts("larger than the capacity", 0)
	w.storing(wire.CodeBusy, "busy", 3*gpu.MiB)
	counts("no room", 0)
}

// TestStorePausesInSlice: a store that ends for want of a sign of life counts no longer,
// nor do those of a daemon that ends.
func TestStorePausesInSlice(t *testing.T) {
	w, s := inSlice(t, func(c *model.Config) { c.StorePause = 100 * time.Millisecond })
	w.storing("", "s", gpu.MiB)
	w.eventually("it does not count", func() bool { got, n := s.counts(); return got == 0 && n == 1 })
	w, s = inSlice(t)
	w.storing("", "s", gpu.MiB)
	w.stop()
	if got, _ := s.counts(); got != 0 {
		t.Errorf("the daemon has ended, and %v count", got)
	}
}

// TestStoreAcrossTokenDaemons: a store that no token daemon counts goes on, and counts as
// soon as one answers, whatever the limit.
func TestStoreAcrossTokenDaemons(t *testing.T) {
	w, s := inSlice(t)
	held := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.used() == 3*gpu.MiB && s.asked[len(s.asked)-1].Held
	}
	s.away = true
	c := w.storing("", "early", 3*gpu.MiB)
	s.restart(false)
	w.eventually("it counts", held)
	for range 2 {
		s.restart(true)
		s.restart(false)
		w.eventually("it counts again", held)
	}
	s.restart(true)
	c.call("", wire.Request{Op: wire.OpCommit, Name: "early"})
	s.restart(false)
	_, before := s.counts()
	late := w.storing("", "late", gpu.MiB)
	if got, n := s.counts(); got != gpu.MiB || n != before+1 {
		t.Errorf("%v count after %d requests, want 1 MiB after 1", got, n-before)
	}
	s.mu.Lock()
	s.none = true
	s.mu.Unlock()
	_ = late.Close()
	w.eventually("nothing is stored", func() bool { got, _ := s.counts(); return got == 0 })
	w.storing("", "outside", 1)
}
