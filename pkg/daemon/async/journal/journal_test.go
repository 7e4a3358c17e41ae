package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/daemon/clocktest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("GFAAS_TEST_JOURNAL"); dir != "" {
		os.Exit(acceptUntilKilled(dir))
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must happen.
const patience = time.Minute

var options = Options{Retention: time.Hour, MaxEnded: 1000}

// tester is a test, a benchmark or a property.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func opened(t tester, dir string, s sizes) *Journal {
	t.Helper()
	j, err := open(dir, options, s)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// inMemory is a new folder where a sync takes no time, if there is one.
func inMemory(t tester) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "journal")
	if err != nil {
		dir, err = os.MkdirTemp("", "journal")
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (j *Journal) body(data []byte) *Body {
	b := j.NewBody()
	if _, err := b.Write(data); err != nil {
		panic(err)
	}
	return b
}

func (j *Journal) accept(c Call, data []byte) error {
	b := j.body(data)
	defer b.Discard()
	return j.Accept(c, b)
}

func (j *Journal) put(c Call, data []byte) error {
	b := j.body(data)
	defer b.Discard()
	return j.Put(c, b)
}

func newCall(id string) Call {
	return Call{ID: id, Function: "f", State: Queued, Accepted: time.Now().UTC().Round(0), Path: "/x%2Fy", Query: []byte("a=\xff"), Header: []byte("A: b\r\n"), CallbackURL: "http://x/"}
}

// kept is all that is kept of the calls that have not ended: calls and bodies.
func kept(t tester, j *Journal) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, c := range j.Pending() {
		full, r, size, err := j.Read(c.ID)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil || int64(len(body)) != size {
			t.Fatalf("call %s: %d bytes of %d, %v", c.ID, len(body), size, err)
		}
		_ = r.Close()
		out[c.ID] = fmt.Sprintf("%+v %x", full, body)
	}
	return out
}

func same(t tester, what string, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Fatalf("%s: kept %v\nwant %v", what, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

func logs(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestCalls(t *testing.T) {
	dir := t.TempDir()
	j := opened(t, dir, usual)
	long := bytes.Repeat([]byte("0123456789abcdef"), usual.inline/8)
	for id, body := range map[string][]byte{"empty": nil, "short": []byte("x\x00\xff"), "edge": long[:usual.inline], "long": long} {
		if err := j.accept(newCall(id), body); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.accept(newCall("short"), long); !errors.Is(err, ErrExists) {
		t.Errorf("the same id again: %v", err)
	}
	answer := Call{ID: "long", Function: "f", State: Callback, Attempts: 1, Status: 200, Accepted: time.Now(), CallbackURL: "http://x/", ContentType: "text/plain", Seconds: 1.5}
	if err := j.put(answer, long[1:]); err != nil {
		t.Fatal(err)
	}
	if err := j.Note("short", 2, 0); err != nil {
		t.Fatal(err)
	}
	if err := j.Put(Call{ID: "empty", Function: "f", State: Done, Status: 204, Ended: time.Now()}, nil); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{j.Put(newCall("none"), nil), j.Note("none", 1, 1)} {
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("a call that is not there: %v", err)
		}
	}
	var locked *LockedError
	if _, err := Open(dir, options); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("opened twice: %v", err)
	}
	want := kept(t, j)
	if len(want) != 3 {
		t.Errorf("%d calls have not ended, want 3", len(want))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{j.accept(newCall("late"), long), j.Put(newCall("short"), nil), j.Note("short", 9, 9)} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("after it was closed: %v", err)
		}
	}
	stray := filepath.Join(dir, "00000000000000ff"+bodySuffix)
	if err := os.WriteFile(stray, long, 0o600); err != nil {
		t.Fatal(err)
	}
	j = opened(t, dir, usual)
	defer j.Close()
	same(t, "opened again", kept(t, j), want)
	if c, ok := j.Get("short"); !ok || c.Attempts != 2 || c.State != Queued {
		t.Errorf("short: %+v, %v", c, ok)
	}
	if c, ok := j.Get("empty"); !ok || c.Status != 204 || c.State != Done {
		t.Errorf("empty: %+v, %v", c, ok)
	}
	if err := j.Accept(newCall("empty"), nil); !errors.Is(err, ErrExists) {
		t.Errorf("an id that ended: %v", err)
	}
	if _, err := os.Stat(stray); err == nil {
		t.Error("a body that no call has is still there")
	}
	if b := j.body(long); b.name() != "0000000000000100"+bodySuffix {
		t.Errorf("the next body is %s", b.name())
	} else {
		b.Discard()
	}
	j.Expire(time.Now().Add(options.Retention + time.Minute))
	if _, ok := j.Get("empty"); ok {
		t.Error("what ended over an hour ago is remembered")
	}
	if info, err := os.Stat(logs(t, dir)[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of a segment: %v, %v", info.Mode(), err)
	}
}

// TestClockIsSet: an ended call is known for as long as it is to be, whatever becomes of
// the wall's clock: not forgotten at once, or it could be run again, and not kept for
// hours more.
func TestClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{-5 * time.Hour, 0, 5 * time.Hour} {
		dir := t.TempDir()
		j := opened(t, dir, usual)
		now := func(later time.Duration) time.Time { return clocktest.Set(t, time.Now(), by).Add(later) }
		known := func(when string, want bool) {
			t.Helper()
			if _, ok := j.Get("a"); ok != want {
				t.Errorf("set by %v, %s: known is %v", by, when, ok)
			}
		}
		if err := j.Accept(newCall("a"), nil); err != nil {
			t.Fatal(err)
		}
		if err := j.Put(Call{ID: "a", State: Done, Ended: time.Now().Round(0)}, nil); err != nil {
			t.Fatal(err)
		}
		j.Expire(now(options.Retention - time.Minute))
		known("within an hour", true)
		j.Expire(now(options.Retention + time.Minute))
		known("after an hour", false)
		// What is read again ended at most when it was read.
		if err := j.Accept(newCall("b"), nil); err != nil {
			t.Fatal(err)
		}
		if err := j.Put(Call{ID: "b", State: Done, Ended: time.Now().Add(5 * time.Hour).Round(0)}, nil); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		j = opened(t, dir, usual)
		j.Expire(now(options.Retention + time.Minute))
		if _, ok := j.Get("b"); ok {
			t.Errorf("set by %v: what ended in the future is known an hour after it was read", by)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCut: of a log that ends anywhere, what was written whole is there.
func TestCut(t *testing.T) {
	dir := t.TempDir()
	j := opened(t, dir, usual)
	var states []map[string]string // after each write
	var ends []int64
	see := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
		states, ends = append(states, kept(t, j)), append(ends, j.active.size)
	}
	see(j.accept(newCall("a"), []byte("body of a")))
	see(j.Accept(newCall("b"), nil))
	see(j.Note("a", 1, 0))
	see(j.put(Call{ID: "b", State: Callback, Status: 200, Accepted: time.Now().Round(0)}, []byte("answer of b")))
	see(j.Put(Call{ID: "b", State: Done, Ended: time.Now()}, nil))
	_ = j.Close()
	whole, err := os.ReadFile(logs(t, dir)[0])
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(whole) + 1 {
		want := map[string]string{}
		for i, end := range ends {
			if int64(cut) >= end {
				want = states[i]
			}
		}
		rest := []string{"", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "\xff\x01\x00\x00garbage of some length"}[cut%3]
		if cut < len(magic) {
			rest = ""
		}
		dir := inMemory(t)
		data := append(slices.Clone(whole[:cut]), rest...)
		if err := os.WriteFile(filepath.Join(dir, "0000000000000007"+segmentSuffix), data, 0o600); err != nil {
			t.Fatal(err)
		}
		j := opened(t, dir, usual)
		same(t, fmt.Sprintf("cut at %d", cut), kept(t, j), want)
		if cut%20 == 0 {
			if err := j.Accept(newCall("c"), nil); err != nil {
				t.Fatal(err)
			}
			_ = j.Close()
			if j = opened(t, dir, usual); len(kept(t, j)) != len(want)+1 {
				t.Errorf("cut at %d: what came after that is not there", cut)
			}
		}
		_ = j.Close()
		_ = os.RemoveAll(dir)
	}
}

// TestDamage: what is not as it was written is told, and never run.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	j := opened(t, dir, usual)
	defer func() { _ = j.Close() }()
	for _, id := range []string{"a", "b", "c"} {
		if err := j.accept(newCall(id), bytes.Repeat([]byte(id), 2*usual.inline)); err != nil {
			t.Fatal(err)
		}
	}
	j.mu.Lock()
	file, at := filepath.Join(dir, j.entries["a"].file), j.entries["b"].at
	j.mu.Unlock()
	flip(t, file, 1000)
	flip(t, at.segment.path, at.offset+20)
	if err := os.Remove(filepath.Join(dir, j.entries["c"].file)); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b", "c"} {
		var damaged *DamagedError
		if _, _, _, err := j.Read(id); !errors.As(err, &damaged) {
			t.Errorf("%s: %v", id, err)
		}
	}
	j.sizes.segment, j.sizes.waste, j.sizes.least = 1, -1<<30, 1
	for range 4 {
		if err := j.Note("a", 1, 0); err != nil {
			t.Fatal(err)
		}
	}
	var damaged *DamagedError
	if _, _, _, err := j.Read("b"); !errors.As(err, &damaged) {
		t.Errorf("b, whose segment is gone: %v", err)
	}
	for _, id := range []string{"a", "b", "c"} {
		if err := j.Put(Call{ID: id, State: Failed, Ended: time.Now()}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, other := range []string{"gfaas-async 2\nrest", "something else"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "0000000000000001"+segmentSuffix), []byte(other), 0o600); err != nil {
			t.Fatal(err)
		}
		if j, err := Open(dir, options); err == nil {
			t.Errorf("%q was opened", other)
			_ = j.Close()
		}
	}
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// TestGroupCommit: what comes while a write is under way is written at once.
func TestGroupCommit(t *testing.T) {
	const callers = 50
	j := opened(t, t.TempDir(), usual)
	defer j.Close()
	j.io.Lock() // a write is under way
	errs := make(chan error, 2*callers)
	for n := range 2 * callers {
		go func() { errs <- j.accept(newCall(fmt.Sprint(n%callers)), []byte("x")) }()
	}
	var b *batch
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		j.mu.Lock()
		b = j.batch
		joined := b != nil && len(b.records) == callers
		j.mu.Unlock()
		if joined {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("they did not join one write")
		}
	}
	j.io.Unlock()
	took := 0
	for range 2 * callers {
		switch err := <-errs; {
		case err == nil:
			took++
		case !errors.Is(err, ErrExists):
			t.Error(err)
		}
	}
	if took != callers || j.active.size != int64(len(magic)+len(b.data)) {
		t.Errorf("%d were accepted, want %d, in one write of %d bytes; there are %d", took, callers, len(b.data), j.active.size)
	}
}

// TestSegmentStays: as long as the oldest segment cannot be removed, what says that its
// calls have ended is kept too, and they are not run again.
func TestSegmentStays(t *testing.T) {
	dir := t.TempDir()
	small := sizes{segment: 1, least: 1, inline: 400} // one for each record
	j := opened(t, dir, small)
	if err := j.accept(newCall("a"), nil); err != nil {
		t.Fatal(err)
	}
	oldest := logs(t, dir)[0]
	if err := unix.Mount(oldest, oldest, "", unix.MS_BIND, ""); err != nil {
		if os.Getenv("CI") != "" || os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skip("needs root:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(oldest, unix.MNT_DETACH) })
	end := func(id string) {
		t.Helper()
		if err := j.Put(Call{ID: id, State: Done, Ended: time.Now()}, nil); err != nil {
			t.Fatal(err)
		}
		j.Expire(time.Now().Add(2 * time.Hour))
	}
	others := func(name string) {
		t.Helper()
		for n := range 10 {
			id := fmt.Sprint(name, n)
			if err := j.accept(newCall(id), nil); err != nil {
				t.Fatal(err)
			}
			end(id)
		}
	}
	end("a")
	others("b")
	if err := unix.Unmount(oldest, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
	j = opened(t, dir, small)
	defer j.Close()
	if left := kept(t, j); len(left) > 0 {
		t.Errorf("not ended: %v", slices.Sorted(maps.Keys(left)))
	}
	others("c")
	if _, err := os.Stat(oldest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the oldest segment is still there: %v", err)
	}
}

// TestModel compares a journal of small segments, opened again and again, with a
// map.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir := inMemory(t)
		defer os.RemoveAll(dir)
		small := sizes{
			segment: rapid.Int64Range(1, 4000).Draw(t, "segment"),
			waste:   rapid.Int64Range(0, 4000).Draw(t, "waste"), least: rapid.Int64Range(1, 500).Draw(t, "least"),
			inline: 400,
		}
		j := opened(t, dir, small)
		type model struct {
			call Call
			body string
		}
		calls := map[string]*model{}
		var ended []string
		var needed int64
		id := func() string { return fmt.Sprint(rapid.IntRange(0, 12).Draw(t, "id")) }
		body := func() string {
			n := rapid.SampledFrom([]int{0, 1, 300, small.inline + 1}).Draw(t, "size")
			return strings.Repeat(string(rune('a'+rapid.IntRange(0, 25).Draw(t, "letter"))), n)
		}
		forget := func() {
			j.Expire(time.Now().Add(2 * time.Hour))
			for _, id := range ended {
				delete(calls, id)
			}
			ended = nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"accept": func(t *rapid.T) {
				m := &model{newCall(id()), body()}
				err := j.accept(m.call, []byte(m.body))
				if known := calls[m.call.ID] != nil; known != errors.Is(err, ErrExists) || !known && err != nil {
					t.Fatal(known, err)
				} else if !known {
					calls[m.call.ID] = m
				}
			},
			"note": func(t *rapid.T) {
				if m := calls[id()]; m != nil && !m.call.State.Ended() {
					m.call.Attempts++
					m.call.Posts += 2
					if err := j.Note(m.call.ID, m.call.Attempts, m.call.Posts); err != nil {
						t.Fatal(err)
					}
				}
			},
			"answer": func(t *rapid.T) {
				if m := calls[id()]; m != nil && m.call.State == Queued {
					m.call, m.body = Call{ID: m.call.ID, Function: "f", State: Callback, Status: 200, Accepted: m.call.Accepted, Seconds: 1}, body()
					if err := j.put(m.call, []byte(m.body)); err != nil {
						t.Fatal(err)
					}
				}
			},
			"end": func(t *rapid.T) {
				if m := calls[id()]; m != nil && !m.call.State.Ended() {
					m.call.State, m.call.Ended, m.body = Done, time.Now().UTC().Round(0), ""
					if err := j.Put(m.call, nil); err != nil {
						t.Fatal(err)
					}
					ended = append(ended, m.call.ID)
				}
			},
			"forget": func(*rapid.T) { forget() },
			"reopen": func(t *rapid.T) {
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
				j = opened(t, dir, small)
				forget() // what was forgotten before its time is there again
			},
			"": func(t *rapid.T) {
				pending := map[string]string{}
				files := 0
				var live int64
				for id, m := range calls {
					c, ok := j.Get(id)
					if !ok || c.State != m.call.State || c.Attempts != m.call.Attempts || c.Posts != m.call.Posts || c.Status != m.call.Status {
						t.Fatalf("%s: %+v, %v, want %+v", id, c, ok, m.call)
					}
					live += j.entries[id].at.size
					if !m.call.State.Ended() {
						pending[id] = fmt.Sprintf("%+v %x", m.call, m.body)
					}
					if len(m.body) > small.inline {
						files++
					}
				}
				got := kept(t, j)
				for id, want := range pending {
					// The wall clock alone is kept of a time.
					if got[id] != want {
						t.Fatalf("%s: %.200s\nwant %.200s", id, got[id], want)
					}
				}
				if len(got) != len(pending) || len(j.entries) != len(calls) || j.live != live {
					t.Fatalf("%d calls, %d pending, %d bytes; want %d, %d, %d", len(j.entries), len(got), j.live, len(calls), len(pending), live)
				}
				var onDisk int64
				for _, s := range j.segments {
					onDisk += s.size
				}
				// Each write is followed by one step of tidying at most.
				needed = max(needed, live)
				if most := 2*needed + small.waste + 2*small.segment + small.least*int64(len(j.segments)) + 4000; onDisk > most {
					t.Fatalf("%d bytes on disk for at most %d that were needed, want at most %d", onDisk, needed, most)
				}
				if bodies, _ := filepath.Glob(filepath.Join(dir, "*"+bodySuffix)); len(bodies) != files {
					t.Fatalf("%d files of bodies, want %d", len(bodies), files)
				}
			},
		})
		_ = j.Close()
	})
}

func FuzzSegment(f *testing.F) {
	c := newCall("a")
	r, err := newRecord(&c, nil)
	if err != nil {
		f.Fatal(err)
	}
	note, err := encode(head{Note: true, Call: Call{ID: "a", Attempts: 1}}, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(slices.Concat(r, note))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		data = append([]byte(magic), data...)
		var again []byte
		end := scan(data, func(h head, body []byte, _, _ int64) {
			r, err := encode(h, body)
			if err != nil {
				t.Fatal(err)
			}
			again = append(again, r...)
		})
		var third []byte
		whole := append([]byte(magic), again...)
		if got := scan(whole, func(h head, body []byte, _, _ int64) {
			r, _ := encode(h, body)
			third = append(third, r...)
		}); got != int64(len(whole)) || !bytes.Equal(again, third) {
			t.Fatalf("%q, of %d bytes until %d, became %q", data, len(data), end, third)
		}
	})
}

func BenchmarkAccept(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			j := opened(b, b.TempDir(), usual)
			defer j.Close()
			b.SetParallelism(callers)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					c := newCall(fmt.Sprint(rand.Int63()))
					if err := j.accept(c, make([]byte, 1000)); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
