package model

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// world simulates a daemon and its clients with faults: files are broken, loads take any
// time and end in any order, clients leave at any time, and other programs use the GPU's
// memory. After each step it checks the invariants.
type world struct {
	t          *rapid.T
	p          *Policy
	now        time.Duration
	capacity   gpu.Bytes
	usedBefore gpu.Bytes // s.Used after the previous step
	last       RequestID

	answers       map[RequestID]string // "": not answered
	holds         map[RequestID]CopyID
	busy          map[CopyID]string        // operation of the daemon: begin, fill, cancel, store
	storing       map[CopyID]RequestID     // whose store was granted
	lastHeartbeat map[CopyID]time.Duration // the last sign of life of that
	bounds        map[string]gpu.Bytes     // of tenants
	taken         map[string]gpu.Bytes     // what those had a step ago
	memory        map[CopyID]gpu.Bytes     // taken
	ready         map[CopyID]bool
	requests      map[RequestID]Event
	wake          time.Duration
}

func (w *world) step(events ...Event) {
	w.t.Helper()
	for _, a := range w.p.Step(w.now, events, nil) {
		w.perform(a)
	}
	sum := gpu.Bytes(0)
	for _, n := range w.memory {
		sum += n
	}
	s := w.p.Snapshot()
	if sum > max(w.capacity, w.usedBefore) || s.Used > max(w.capacity, w.usedBefore) || s.Used < sum {
		w.t.Fatalf("GPU memory: copies use %d bytes and the policy counts %d, want at least as much counted as used, and at most %d", sum, s.Used, max(w.capacity, w.usedBefore))
	}
	for c := range w.storing {
		if w.now >= w.lastHeartbeat[c]+StorePause {
			w.t.Fatalf("the store of copy %d continues %v after its last sign of life, want less than %v", c, w.now-w.lastHeartbeat[c], StorePause)
		}
	}
	taken := map[string]gpu.Bytes{}
	for _, c := range s.Copies {
		if c.State == "filling" || c.State == "ready" || c.State == "cancelled" && w.memory[c.ID] > 0 {
			taken[c.Key.Tenant] += c.Bytes
		}
	}
	for tenant, bound := range w.bounds {
		if taken[tenant] > max(bound, w.taken[tenant]) {
			w.t.Fatalf("tenant %s has %d bytes, want at most %d or as before, %d", tenant, taken[tenant], bound, w.taken[tenant])
		}
	}
	w.taken = taken
	host := gpu.Bytes(0)
	for _, c := range s.Copies {
		if c.State == "filling" || c.State == "ready" || c.State == "cancelled" && w.memory[c.ID] > 0 {
			host += c.Host
		}
	}
	if host > s.Host || s.Host > MaxHost {
		w.t.Fatalf("copies occupy %d bytes of host memory and the policy counts %d, want at most %d", host, s.Host, MaxHost)
	}
	if w.usedBefore = s.Used; s.Used > w.capacity { // since it was made smaller
		for _, c := range s.Copies {
			if c.State == "ready" && c.Refs == 0 {
				w.t.Fatalf("the policy uses %d bytes, more than the capacity of %d: copy %d, which no request holds, is still ready, want it evicted", s.Used, w.capacity, c.ID)
			}
		}
	}
	refs := map[CopyID]int{}
	for _, c := range w.holds {
		refs[c]++
	}
	loading := map[Key]int{}
	for _, c := range s.Copies {
		if c.Refs != refs[c.ID] {
			w.t.Fatalf("copy %d has %d holders, want %d", c.ID, c.Refs, refs[c.ID])
		}
		if c.State == "waiting" && c.Waiting == 0 || c.State != "ready" && Reasons.Check(c.Reason) != nil {
			w.t.Fatalf("copy %d: got %+v, want a request that waits for it and a documented reason", c.ID, c)
		}
		if _, store := w.storing[c.ID]; !store && c.State != "ready" && c.State != "cancelled" && c.Waiting == 0 && w.busy[c.ID] != "store" {
			w.t.Fatalf("copy %d is being loaded and no request waits for it, want a cancelled load: %+v", c.ID, c)
		}
		if c.State == "beginning" || c.State == "filling" {
			loading[c.Key]++
		}
	}
}

func (w *world) perform(a Action) {
	switch a := a.(type) {
	case Begin:
		if _, store := w.requests[a.Request].(Store); !store {
			w.busy[a.Copy] = "begin"
		}
		if w.answers[a.Request] != "" {
			w.t.Fatalf("begin for request %d: it is already %s, want an unanswered request", a.Request, w.answers[a.Request])
		}
	case Fill:
		w.busy[a.Copy] = "fill"
		if w.memory[a.Copy] != 0 {
			w.t.Fatalf("fill of copy %d: it already has %d bytes, want 0", a.Copy, w.memory[a.Copy])
		}
	case Cancel:
		if w.busy[a.Copy] == "" {
			w.t.Fatalf("cancel of copy %d: it is not being loaded, want a copy that is", a.Copy)
		}
		w.busy[a.Copy] += ", cancelled"
	case Free:
		if r, store := w.storing[a.Copy]; store && w.now >= w.lastHeartbeat[a.Copy]+StorePause {
			delete(w.holds, r)
			delete(w.storing, a.Copy)
		}
		if slices.Contains(slices.Collect(maps.Values(w.holds)), a.Copy) {
			w.t.Fatalf("free of copy %d (%s): a request holds it, want no holders", a.Copy, a.Reason)
		}
		if a.Evicted && !w.ready[a.Copy] || Reasons.Check(a.Reason) != nil {
			w.t.Fatalf("free of copy %d: evicted %v, ready %v, reason %q; want only ready copies evicted, and a documented reason", a.Copy, a.Evicted, w.ready[a.Copy], a.Reason)
		}
		delete(w.memory, a.Copy)
		delete(w.busy, a.Copy)
		delete(w.ready, a.Copy)
	case Publish:
		if !w.ready[a.Copy] || a.Generation < 1 {
			w.t.Fatalf("publish of copy %d as generation %d: ready %v; want a ready copy and a generation of at least 1", a.Copy, a.Generation, w.ready[a.Copy])
		}
	case Grant:
		w.answer(a.Request, "granted")
		w.holds[a.Request] = a.Copy
		if _, store := w.requests[a.Request].(Store); store {
			w.storing[a.Copy], w.lastHeartbeat[a.Copy] = a.Request, w.now
		} else if !w.ready[a.Copy] {
			w.t.Fatalf("request %d is granted copy %d, which is not ready, want a ready copy", a.Request, a.Copy)
		}
	case Refuse:
		if a.Err == nil {
			w.t.Fatalf("request %d is refused without an error, want one", a.Request)
		}
		w.answer(a.Request, "refused")
	case WakeAt:
		w.wake = a.At
	}
}

func (w *world) answer(r RequestID, outcome string) {
	if was, known := w.answers[r]; !known || was != "" {
		w.t.Fatalf("request %d is %s: its earlier answer is %q, known %v; want a known request without an answer", r, outcome, was, known)
	}
	w.answers[r] = outcome
}

// drawKey draws one of the keys of a map, sorted; false where there is none.
func drawKey[K ~uint64, V any](w *world, m map[K]V, of func(K) bool) (K, bool) {
	var list []K
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if of(k) {
			list = append(list, k)
		}
	}
	if len(list) == 0 {
		return 0, false
	}
	return rapid.SampledFrom(list).Draw(w.t, "one"), true
}

func (w *world) sendRequest(make func(RequestID, Key, time.Duration) Event) {
	w.last++
	key := Key{rapid.SampledFrom([]string{"default", "default", "t"}).Draw(w.t, "tenant"), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(w.t, "name")}
	until := w.now + rapid.SampledFrom([]time.Duration{0, 0, time.Second, time.Hour}).Draw(w.t, "patience")
	w.answers[w.last] = ""
	w.requests[w.last] = make(w.last, key, until)
	w.step(w.requests[w.last])
}

// progress completes one operation of the daemon.
func (w *world) progress(fail bool) bool {
	id, ok := drawKey(w, w.busy, func(c CopyID) bool { return w.busy[c] != "store" })
	if !ok {
		return false
	}
	at, cancelled := strings.CutSuffix(w.busy[id], ", cancelled")
	delete(w.busy, id)
	switch {
	case fail || cancelled && rapid.Bool().Draw(w.t, "in time"):
		delete(w.memory, id)
		w.step(Failed{id, errors.New("broken")})
	case at == "begin":
		w.step(Sized{id, gpu.Bytes(rapid.IntRange(1, int(w.capacity)+2).Draw(w.t, "bytes")), w.host()})
	default:
		w.fill(id)
	}
	return true
}

// host draws the host memory of a copy, mostly a small amount.
func (w *world) host() gpu.Bytes {
	return rapid.SampledFrom([]gpu.Bytes{0, 1, 1, MaxHost / 3, MaxHost / 2, MaxHost, MaxHost + 1}).Draw(w.t, "host")
}

func (w *world) fill(id CopyID) {
	var c Copy
	for _, other := range w.p.Snapshot().Copies {
		if other.ID == id {
			c = other
		}
	}
	if rapid.IntRange(0, 5).Draw(w.t, "full") == 0 {
		w.step(Full{id})
		return
	}
	w.memory[id] = c.Bytes
	for r, store := range w.requests {
		if s, ok := store.(Store); ok && w.answers[r] == "" && s.Key == c.Key && w.storeOf(r) == id {
			w.busy[id] = "store"
			w.step(Writable{id})
			return
		}
	}
	w.ready[id] = true
	w.step(Loaded{id, rapid.SampledFrom([]string{"x", "y"}).Draw(w.t, "content")})
}

// storeOf returns the copy for which a store's request waits, or 0.
func (w *world) storeOf(r RequestID) CopyID {
	if req := w.p.requests[r]; req != nil && req.copy.store == r {
		return req.copy.id
	}
	return 0
}

func (w *world) release(r RequestID) {
	delete(w.answers, r)
	delete(w.holds, r)
	for c, by := range w.storing {
		if by == r {
			delete(w.storing, c)
		}
	}
	w.step(Release{r})
}

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := gpu.Bytes(rapid.IntRange(1, 12).Draw(t, "first capacity"))
		w := &world{
			t: t, p: New(capacity), capacity: capacity, answers: map[RequestID]string{}, holds: map[RequestID]CopyID{}, busy: map[CopyID]string{},
			storing: map[CopyID]RequestID{}, lastHeartbeat: map[CopyID]time.Duration{}, memory: map[CopyID]gpu.Bytes{}, ready: map[CopyID]bool{},
			requests: map[RequestID]Event{},
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			w.now += rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second, StorePause}).Draw(t, "later")
			switch rapid.IntRange(0, 14).Draw(t, "what") {
			case 0, 1, 2:
				w.sendRequest(func(r RequestID, k Key, until time.Duration) Event { return Get{r, k, true, until} })
			case 3:
				w.sendRequest(func(r RequestID, k Key, until time.Duration) Event { return Get{r, k, false, until} })
			case 4:
				w.sendRequest(func(r RequestID, k Key, until time.Duration) Event { return Put{r, k, until} })
			case 5:
				bytes := gpu.Bytes(rapid.IntRange(1, int(w.capacity)+1).Draw(t, "bytes"))
				host := w.host()
				w.sendRequest(func(r RequestID, k Key, until time.Duration) Event { return Store{r, k, bytes, host, until} })
			case 6:
				if r, ok := drawKey(w, w.answers, func(r RequestID) bool { return true }); ok {
					w.release(r)
				}
			case 7:
				w.step(Remove{Key{"default", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")}})
			case 8:
				if c, ok := drawKey(w, w.storing, func(c CopyID) bool { return w.busy[c] == "store" }); ok {
					if w.now >= w.lastHeartbeat[c]+StorePause {
						w.step() // it ends first
						continue
					}
					delete(w.busy, c)
					delete(w.storing, c)
					w.ready[c] = true
					w.step(Loaded{c, fmt.Sprint("store ", c)})
				}
			case 9:
				w.progress(true)
			case 10:
				if rapid.IntRange(0, 3).Draw(t, "resize") == 0 {
					w.capacity = gpu.Bytes(rapid.IntRange(1, 12).Draw(t, "capacity"))
					w.step(Resize{w.capacity})
				}
			case 11:
				if c, ok := drawKey(w, w.storing, func(CopyID) bool { return true }); ok {
					w.lastHeartbeat[c] = w.now
					w.step(Heartbeat{w.storing[c]})
				}
			case 12:
				if rapid.IntRange(0, 3).Draw(t, "bound") == 0 {
					w.bounds = map[string]gpu.Bytes{rapid.SampledFrom([]string{"default", "t"}).Draw(t, "of"): gpu.Bytes(rapid.IntRange(1, 12).Draw(t, "bytes"))}
					w.step(Bound{w.bounds})
				}
			default:
				w.progress(false)
			}
		}
		// After all requests were released and all operations have ended, only ready copies
		// remain that no request holds.
		w.now += 24 * time.Hour
		w.step()
		for w.progress(false) {
		}
		for r, outcome := range w.answers {
			if outcome == "" && w.storeOf(r) == 0 && w.p.requests[r].copy.store == 0 {
				t.Fatalf("request %d is not answered after all operations have ended, want an answer: %+v", r, w.p.Snapshot())
			}
		}
		for _, r := range slices.Sorted(maps.Keys(w.answers)) {
			w.release(r)
		}
		for w.progress(false) {
		}
		if w.p.wakeAt != 0 || len(w.p.requests) > 0 {
			t.Fatalf("after all requests were released: got a wake at %v and %d requests, want neither", w.p.wakeAt, len(w.p.requests))
		}
		for _, c := range w.p.Snapshot().Copies {
			if c.State != "ready" || !c.Newest || c.Refs != 0 {
				t.Fatalf("got %+v at the end, want only ready copies of the newest generation that no request holds", c)
			}
		}
	})
}
