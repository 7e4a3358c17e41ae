package model

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// script runs a policy event by event and checks its actions.
type script struct {
	t   *testing.T
	p   *Policy
	now time.Duration
}

func (s *script) step(want string, events ...Event) {
	s.t.Helper()
	var got []string
	for _, a := range s.p.Step(s.now, events, nil) {
		switch a := a.(type) {
		case Begin:
			got = append(got, fmt.Sprintf("begin %d for %d", a.Copy, a.Request))
		case Fill:
			got = append(got, fmt.Sprintf("fill %d", a.Copy))
		case Cancel:
			got = append(got, fmt.Sprintf("cancel %d", a.Copy))
		case Free:
			verb := "free"
			if a.Evicted {
				verb = "evict"
			}
			got = append(got, fmt.Sprintf("%s %d", verb, a.Copy))
		case Publish:
			got = append(got, fmt.Sprintf("gen %d is %d", a.Generation, a.Copy))
		case Grant:
			got = append(got, fmt.Sprintf("grant %d: %d gen %d hit %v", a.Request, a.Copy, a.Generation, a.Hit))
		case Refuse:
			code := a.Err.Error()
			var r *Refusal
			if errors.As(a.Err, &r) {
				code = r.Code
			}
			got = append(got, fmt.Sprintf("refuse %d: %s", a.Request, code))
		case WakeAt:
			got = append(got, fmt.Sprintf("wake %v", a.At))
		}
	}
	if text := strings.Join(got, "; "); text != want {
		s.t.Errorf("%+v:\ngot  %s\nwant %s", events, text, want)
	}
}

// load runs the complete load of a model up to its first grant, as request n and copy c.
func (s *script) load(name string, n RequestID, c CopyID, bytes gpu.Bytes) {
	s.t.Helper()
	s.step(fmt.Sprintf("begin %d for %d", c, n), Get{n, key(name), true, s.now})
	s.step(fmt.Sprintf("fill %d", c), Sized{c, bytes, 0})
	s.step(fmt.Sprintf("gen 1 is %d; grant %d: %d gen 1 hit false", c, n, c), Loaded{c, name})
}

func key(name string) Key { return Key{"default", name} }

func start(t *testing.T, capacity gpu.Bytes) *script {
	return &script{t: t, p: New(capacity), now: time.Second}
}

func TestOneLoad(t *testing.T) {
	s := start(t, 10)
	s.step("begin 1 for 1", Get{1, key("a"), true, s.now})
	s.step("", Get{2, key("a"), true, s.now})
	s.step("begin 2 for 3", Get{3, Key{"other", "a"}, true, s.now})
	s.step("fill 1", Sized{1, 4, 0})
	s.step("", Get{4, key("a"), false, s.now})
	s.step("gen 1 is 1; grant 1: 1 gen 1 hit false; grant 2: 1 gen 1 hit false; grant 4: 1 gen 1 hit false", Loaded{1, "x"})
	s.step("grant 5: 1 gen 1 hit true", Get{5, key("a"), true, s.now})
	s.step("refuse 3: broken", Failed{2, errors.New("broken")})
	s.step("refuse 6: absent", Get{6, key("b"), false, s.now})
}

func TestFailedLoadRefusesAllRequests(t *testing.T) {
	s := start(t, 10)
	s.step("begin 1 for 1", Get{1, key("a"), true, s.now})
	s.step("", Get{2, key("a"), true, s.now})
	s.step("fill 1", Sized{1, 4, 0})
	s.step("refuse 1: broken; refuse 2: broken", Failed{1, errors.New("broken")})
	if got := s.p.Snapshot(); got.Used != 0 || len(got.Copies) != 0 {
		t.Errorf("got %+v, want no copies and no memory in use", got)
	}
	s.step("begin 2 for 3", Get{3, key("a"), true, s.now})
}

func TestEviction(t *testing.T) {
	s := start(t, 10)
	for i, name := range []string{"a", "b", "c"} {
		s.load(name, RequestID(i+1), CopyID(i+1), 3)
		s.now += time.Second
	}
	s.step("", Release{2})
	s.now += time.Second
	s.step("", Release{1})
	s.now += time.Second
	s.step("", Release{3})
	s.now += time.Second
	s.step("grant 4: 2 gen 1 hit true", Get{4, key("b"), true, s.now})
	s.step("", Release{4})
	s.step("begin 4 for 5", Get{5, key("d"), true, s.now})
	s.step("evict 1; fill 4", Sized{4, 3, 0}) // a is the least recently used copy that no request holds
	s.step("gen 1 is 4; grant 5: 4 gen 1 hit false", Loaded{4, "d"})
	s.step("begin 5 for 6", Get{6, key("e"), true, s.now})
	s.step("evict 3; evict 2; fill 5", Sized{5, 7, 0})
}

func TestResize(t *testing.T) {
	s := start(t, 10)
	s.load("a", 1, 1, 3)
	s.load("b", 2, 2, 3)
	s.load("c", 3, 3, 3)
	s.now += time.Second
	s.step("", Release{3})
	s.step("begin 4 for 4", Get{4, key("d"), true, s.now + time.Hour})
	s.step("evict 3; wake 1h0m2s", Sized{4, 5, 0}, Resize{5}) // held copies stay
	s.step("begin 5 for 5", Get{5, key("e"), true, s.now + time.Hour})
	s.step("refuse 5: capacity; free 5", Sized{5, 6, 0})
	s.step("evict 1", Release{1}) // 3 of 5 are held
	s.step("refuse 4: capacity; free 4; wake 0s", Resize{4})
	s.step("begin 6 for 6", Get{6, key("a"), true, s.now + time.Hour})
	s.step("wake 1h0m2s", Sized{6, 4, 0})
	s.step("fill 6; wake 0s", Resize{7})
}

func TestCapacityAndBusy(t *testing.T) {
	s := start(t, 10)
	s.load("a", 1, 1, 6)
	s.step("begin 2 for 2", Get{2, key("b"), true, s.now})
	s.step("refuse 2: capacity; free 2", Sized{2, 11, 0})
	s.step("begin 3 for 3", Get{3, key("b"), true, s.now})
	s.step("refuse 3: busy; free 3", Sized{3, 5, 0})
	s.step("begin 4 for 4", Get{4, key("b"), true, s.now + time.Second})
	s.step("", Get{5, key("b"), true, s.now + 2*time.Second})
	s.step("wake 2s", Sized{4, 5, 0})
	s.now += time.Second
	s.step("refuse 4: busy; wake 3s")
	if why := s.p.Snapshot().Copies[1].Reason; why.Code != noRoom {
		t.Errorf("reason of the waiting copy: got %q, want %q", why.Code, noRoom)
	}
	// A copy that waits for memory does not delay a copy that fits.
	s.step("begin 5 for 6", Get{6, key("c"), true, s.now})
	s.step("fill 5", Sized{5, 4, 0})
	s.step("refuse 6: broken", Failed{5, errors.New("broken")})
	s.step("evict 1; fill 4; wake 0s", Release{1})
	s.step("gen 1 is 4; grant 5: 4 gen 1 hit false", Loaded{4, "b"})
}

// TestHostMemory checks that the host memory that copies use has a limit. To stay within
// it, the policy evicts copies as it does for GPU memory.
func TestHostMemory(t *testing.T) {
	const third = MaxHost / 3
	s := start(t, 100)
	for i, name := range []string{"a", "b", "c"} {
		n := RequestID(i + 1)
		s.step(fmt.Sprintf("begin %d for %d", n, n), Get{n, key(name), true, s.now})
		s.step(fmt.Sprintf("fill %d", n), Sized{CopyID(n), 1, third})
		s.step(fmt.Sprintf("gen 1 is %d; grant %d: %d gen 1 hit false", n, n, n), Loaded{CopyID(n), name})
	}
	s.step("begin 4 for 4", Get{4, key("d"), true, s.now + time.Hour})
	s.step("wake 1h0m1s", Sized{4, 1, 2 * third})
	if why := s.p.Snapshot().Copies[3].Reason; why.Code != noHostRoom {
		t.Errorf("reason of the waiting copy: got %q, want %q", why.Code, noHostRoom)
	}
	s.step("begin 5 for 5; fill 5", Store{5, key("e"), 1, 1, s.now})
	s.step("", Release{2})
	s.now += time.Second
	s.step("evict 2; evict 1; fill 4; wake 0s", Release{1})
	s.step("begin 6 for 6", Get{6, key("f"), true, s.now})
	s.step("refuse 6: capacity; free 6", Sized{6, 1, MaxHost + 1})
	s.step("begin 7 for 7", Get{7, key("f"), true, s.now})
	s.step("refuse 7: busy; free 7", Sized{7, 1, third})
}

func TestFullGPU(t *testing.T) {
	s := start(t, 10)
	s.load("a", 1, 1, 2)
	s.load("b", 2, 2, 2)
	s.step("", Release{1})
	s.step("begin 3 for 3", Get{3, key("c"), true, s.now})
	s.step("fill 3", Sized{3, 4, 0})
	s.step("evict 1; fill 3", Full{3})
	s.step("refuse 3: gpu-memory; free 3", Full{3})
}

func TestReplace(t *testing.T) {
	s := start(t, 10)
	s.load("a", 1, 1, 3)
	s.step("begin 2 for 2", Put{2, key("a"), s.now})
	s.step("free 2; grant 2: 1 gen 1 hit true", Same{2, "a"})
	s.step("begin 3 for 3", Put{3, key("a"), s.now})
	s.step("fill 3", Sized{3, 3, 0})
	s.step("grant 4: 1 gen 1 hit true", Get{4, key("a"), true, s.now}) // the old generation, until the new one is loaded
	s.step("gen 2 is 3; grant 3: 3 gen 2 hit false", Loaded{3, "new"})
	s.step("grant 5: 3 gen 2 hit true", Get{5, key("a"), true, s.now})
	s.step("", Release{1}, Release{2})
	s.step("free 1", Release{4})
	s.step("begin 4 for 6", Put{6, key("a"), s.now})
	s.step("fill 4", Sized{4, 3, 0})
	s.step("free 4; grant 6: 3 gen 2 hit true", Loaded{4, "new"})
	s.step("", Remove{key("a")})
	s.step("refuse 7: absent", Get{7, key("a"), false, s.now})
	s.step("", Release{3}, Release{5})
	s.step("free 3", Release{6})
}

// TestPutsAtOnce checks that if a model is put, or requested from a file, while another
// copy of it is being loaded and GPU memory is too short for both, the policy first
// compares the two.
func TestPutsAtOnce(t *testing.T) {
	s := start(t, 10)
	s.step("begin 1 for 1", Put{1, key("a"), s.now})
	s.step("begin 2 for 2", Put{2, key("a"), s.now})
	s.step("begin 3 for 3", Put{3, key("a"), s.now})
	s.step("begin 4 for 4", Get{4, key("a"), true, s.now})
	s.step("fill 1", Sized{1, 6, 0})
	s.step("", Sized{2, 6, 0}, Sized{4, 6, 0}) // no held copy blocks them: both wait for copy 1
	s.now += time.Hour
	s.step("gen 1 is 1; grant 1: 1 gen 1 hit false; begin 2 for 2; free 4; grant 4: 1 gen 1 hit true", Loaded{1, "a"})
	s.step("begin 3 for 3", Sized{3, 6, 0}) // its content was not known yet
	s.step("free 2; grant 2: 1 gen 1 hit true", Same{2, "a"})
	s.step("refuse 3: busy; free 3", Sized{3, 6, 0}) // other content, and the model is held
	// If it fails, the next goes on.
	s.step("free 1", Release{1}, Release{2}, Release{4}, Remove{key("a")})
	s.step("begin 5 for 5", Put{5, key("a"), s.now})
	s.step("begin 6 for 6", Put{6, key("a"), s.now})
	s.step("begin 7 for 7", Get{7, key("b"), true, s.now})
	s.step("fill 5", Sized{5, 6, 0})
	s.step("", Sized{6, 6, 0})
	s.step("refuse 7: busy; free 7", Sized{7, 6, 0})
	s.step("cancel 5", Release{5})
	s.step("fill 6", Failed{5, errors.New("cancelled")})
	// A copy that is being compared, and whose request was released, takes no memory.
	s.step("begin 8 for 8", Put{8, key("b"), s.now})
	s.step("begin 9 for 9", Put{9, key("b"), s.now})
	s.step("fill 8", Sized{8, 4, 0})
	s.step("", Sized{9, 4, 0})
	s.step("gen 1 is 8; grant 8: 8 gen 1 hit false; begin 9 for 9", Loaded{8, "b"})
	s.step("cancel 9", Release{9})
	if used := s.p.Snapshot().Used; used != 10 {
		t.Errorf("GPU memory in use after the cancellation: got %v bytes, want 10", used)
	}
	// A held copy blocks a new one, whatever is being loaded.
	s.step("gen 1 is 6; grant 6: 6 gen 1 hit false", Loaded{6, "a"})
	s.step("begin 10 for 10; refuse 10: busy; free 10", Store{10, key("a"), 6, 0, s.now})
}

func TestFailedPutAffectsNoOtherRequest(t *testing.T) {
	s := start(t, 10)
	s.step("", Known{key("a"), 3, "a"})
	s.step("begin 1 for 1", Put{1, key("a"), s.now})
	s.step("begin 2 for 2", Get{2, key("a"), true, s.now})
	s.step("", Get{3, key("a"), true, s.now})
	s.step("refuse 1: broken", Failed{1, errors.New("broken")})
	s.step("fill 2", Sized{2, 3, 0})
	s.step("gen 3 is 2; grant 2: 2 gen 3 hit false; grant 3: 2 gen 3 hit false", Loaded{2, "a"})
}

func TestReleaseWhileLoading(t *testing.T) {
	s := start(t, 10)
	s.step("begin 1 for 1", Get{1, key("a"), true, s.now})
	s.step("", Get{2, key("a"), true, s.now})
	s.step("", Release{1})
	s.step("fill 1", Sized{1, 3, 0})
	s.step("cancel 1", Release{2})
	s.step("begin 2 for 3", Get{3, key("a"), true, s.now}) // the copy that is being cancelled cannot serve it
	s.step("fill 2", Sized{2, 7, 0})
	s.step("", Failed{1, errors.New("cancelled")})
	s.step("gen 1 is 2; grant 3: 2 gen 1 hit false", Loaded{2, "a"})
}

// TestStorePauses checks that a store that is not committed is cancelled after a minute
// without a sign of life. A committed store stays, and so does a store that sends signs
// of life.
func TestStorePauses(t *testing.T) {
	s := start(t, 10)
	s.step("begin 1 for 1; fill 1", Store{1, key("a"), 6, 0, s.now})
	s.step("grant 1: 1 gen 0 hit false; wake 1m1s", Writable{1})
	s.step("begin 2 for 2; fill 2", Store{2, key("b"), 4, 0, s.now})
	s.step("grant 2: 2 gen 0 hit false", Writable{2})
	s.step("gen 1 is 2", Loaded{2, "2"})
	s.step("", Get{3, key("a"), false, s.now + time.Hour})
	s.now += 59 * time.Second
	s.step("wake 2m0s", Heartbeat{1})
	s.now += 59 * time.Second
	s.step("")
	s.now++
	s.step("begin 3 for 4", Get{4, key("c"), true, s.now + time.Hour})
	s.step("", Sized{3, 5, 0})
	s.now += time.Second
	s.step("refuse 3: absent; free 1; fill 3; wake 0s") // that makes room
	s.step("", Heartbeat{1}, Release{1}, Loaded{1, "1"})
	s.step("gen 1 is 3; grant 4: 3 gen 1 hit false", Loaded{3, "c"})
	s.now += time.Hour
	s.step("")
}

// TestBound checks that a tenant's bound applies to the memory of its own copies. To stay
// within it, the policy evicts the tenant's copies first. The tenant cannot keep others
// from the rest. A changed bound applies immediately, but held copies stay.
func TestBound(t *testing.T) {
	a, b := func(name string) Key { return Key{"a", name} }, func(name string) Key { return Key{"b", name} }
	s := start(t, 10)
	s.step("", Bound{map[string]gpu.Bytes{"a": 6}})
	s.step("begin 1 for 1; refuse 1: capacity; free 1", Store{1, a("x"), 7, 0, s.now})
	s.step("begin 2 for 2; fill 2", Store{2, a("x"), 4, 0, s.now})
	s.step("grant 2: 2 gen 0 hit false; wake 1m1s", Writable{2})
	s.step("begin 3 for 3; refuse 3: busy; free 3", Store{3, a("y"), 3, 0, s.now}) // the GPU has free memory, but beyond the tenant's bound
	s.step("begin 4 for 4; fill 4", Store{4, b("y"), 6, 0, s.now})
	s.step("grant 4: 4 gen 0 hit false", Writable{4})
	s.step("gen 1 is 4", Loaded{4, "4"})
	s.step("", Release{4})
	s.step("gen 1 is 2; wake 0s", Loaded{2, "2"})
	s.step("", Release{2})
	s.now += time.Second
	// The least recently used copy of the tenant is evicted first, although tenant b's
	// copy was used before it.
	s.step("begin 5 for 5; evict 2; evict 4; fill 5", Store{5, a("z"), 6, 0, s.now})
	s.step("grant 5: 5 gen 0 hit false; wake 1m2s", Writable{5})
	s.step("gen 1 is 5; wake 0s", Loaded{5, "5"})
	s.step("", Bound{map[string]gpu.Bytes{"a": 2, "b": 8}}) // it is held
	s.step("evict 5", Release{5})
	s.step("begin 6 for 6; refuse 6: capacity; free 6", Store{6, b("x"), 9, 0, s.now})
	s.step("begin 7 for 7; refuse 7: capacity; free 7", Store{7, a("x"), 1, MaxHost/5 + 1, s.now}) // the bound on host memory is proportional
	s.step("begin 8 for 8; fill 8", Store{8, a("x"), 1, MaxHost / 5, s.now})
	s.step("begin 9 for 9; refuse 9: busy; free 9", Store{9, a("y"), 1, 1, s.now})
	s.step("", Bound{})
	s.step("begin 10 for 10; fill 10", Store{10, a("y"), 9, 1, s.now})
}

func TestStore(t *testing.T) {
	s := start(t, 10)
	s.step("begin 1 for 1; fill 1", Store{1, key("a"), 3, 0, s.now})
	s.step("wake 2s", Get{2, key("a"), false, s.now + time.Second})
	s.step("refuse 3: busy", Get{3, key("a"), false, s.now})
	s.step("grant 1: 1 gen 0 hit false", Writable{1})
	s.step("gen 1 is 1; grant 2: 1 gen 1 hit false; wake 0s", Loaded{1, "1"})
	s.step("", Release{1}, Release{2})
	// Undone: who waits hears that there is none.
	s.step("begin 2 for 4; fill 2", Store{4, key("b"), 3, 0, s.now})
	s.step("grant 4: 2 gen 0 hit false; wake 1m1s", Writable{2})
	s.step("wake 2s", Get{5, key("b"), false, s.now + time.Second})
	s.step("refuse 5: absent; free 2; wake 0s", Release{4})
	// Nothing to load it from: once it has gone there is none.
	s.step("begin 3 for 6; evict 1; fill 3", Store{6, key("c"), 10, 0, s.now})
	s.step("refuse 7: absent", Get{7, key("a"), false, s.now})
	s.step("begin 4 for 8; refuse 8: busy; free 4", Store{8, key("d"), 1, 0, s.now})
	s.step("free 3", Release{6})
}
