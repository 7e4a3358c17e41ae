package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/daemon/clocktest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("GFAAS_TEST_JOURNAL"); dir != "" {
		os.Exit(acceptUntilKilled(dir))
	}
	goleak.VerifyTestMain(m)
}

// patience is the time limit for expected events.
const patience = time.Minute

var options = Options{Retention: time.Hour, MaxEnded: 1000}

// tester is a test, a benchmark or a property.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func opened(t tester, dir string) *Journal {
	t.Helper()
	j, err := Open(dir, options)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// inMemory returns a new folder, in memory if possible, where a sync takes no time.
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

func (j *Journal) update(c Call, data []byte) error {
	b := j.body(data)
	defer b.Discard()
	return j.Put(c, b)
}

func newCall(id string) Call {
	return Call{ID: id, Function: "f", State: Queued, Accepted: time.Now().UTC().Round(0), Path: "/x%2Fy", Query: []byte("a=\xff"), Header: []byte("A: b\r\n"), CallbackURL: "http://x/"}
}

// pendingBodies returns the records and bodies of all calls that have not ended.
func pendingBodies(t tester, j *Journal) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, c := range j.Pending() {
		full, r, size, err := j.Read(c.ID)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil || int64(len(body)) != size {
			t.Fatalf("read the body of call %s: got %d bytes and the error %v, want %d bytes", c.ID, len(body), err, size)
		}
		_ = r.Close()
		out[c.ID] = fmt.Sprintf("%+v %x", full, body)
	}
	return out
}

func same(t tester, what string, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Fatalf("%s: pending calls: got %v\nwant %v", what, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

func TestCalls(t *testing.T) {
	dir := t.TempDir()
	j := opened(t, dir)
	long := bytes.Repeat([]byte("0123456789abcdef"), maxInline/8)
	for id, body := range map[string][]byte{"empty": nil, "short": []byte("x\x00\xff"), "edge": long[:maxInline], "long": long} {
		if err := j.accept(newCall(id), body); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.accept(newCall("short"), long); !errors.Is(err, ErrExists) {
		t.Errorf("accept a second call with the ID short: got %v, want %v", err, ErrExists)
	}
	answer := Call{ID: "long", Function: "f", State: Callback, Attempts: 1, Status: 200, Accepted: time.Now(), CallbackURL: "http://x/", ContentType: "text/plain", Seconds: 1.5}
	if err := j.update(answer, long[1:]); err != nil {
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
			t.Errorf("change an unknown call: got %v, want %v", err, ErrUnknown)
		}
	}
	var locked *LockedError
	if _, err := Open(dir, options); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("open the journal twice: got %v, want a *LockedError with the PID %d", err, os.Getpid())
	}
	want := pendingBodies(t, j)
	if len(want) != 3 {
		t.Errorf("pending calls: got %d, want 3", len(want))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{j.accept(newCall("late"), long), j.Put(newCall("short"), nil), j.Note("short", 9, 9)} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("use of the closed journal: got %v, want %v", err, os.ErrClosed)
		}
	}
	stray := filepath.Join(dir, "00000000000000ff"+bodySuffix)
	if err := os.WriteFile(stray, long, 0o600); err != nil {
		t.Fatal(err)
	}
	j = opened(t, dir)
	defer j.Close()
	same(t, "opened again", pendingBodies(t, j), want)
	if c, ok := j.Get("short"); !ok || c.Attempts != 2 || c.State != Queued {
		t.Errorf("call short: got %+v (known: %v), want Attempts 2 and State %v", c, ok, Queued)
	}
	if c, ok := j.Get("empty"); !ok || c.Status != 204 || c.State != Done {
		t.Errorf("call empty: got %+v (known: %v), want Status 204 and State %v", c, ok, Done)
	}
	if err := j.Accept(newCall("empty"), nil); !errors.Is(err, ErrExists) {
		t.Errorf("accept a call with the ID of an ended one: got %v, want %v", err, ErrExists)
	}
	if _, err := os.Stat(stray); err == nil {
		t.Errorf("the body file %s, which belongs to no call, remains", stray)
	}
	j.Expire(time.Now().Add(options.Retention + time.Minute))
	if _, ok := j.Get("empty"); ok {
		t.Error("the call that ended over an hour ago is known, want it forgotten")
	}
	if info, err := os.Stat(j.path()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the database: got %v, %v, want 0600", info.Mode(), err)
	}
}

// TestClockIsSet checks that setting the wall clock does not change how long an ended call
// is known. The call is not forgotten early, since it could then be run again, and not kept
// for hours longer.
func TestClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{-5 * time.Hour, 0, 5 * time.Hour} {
		dir := t.TempDir()
		j := opened(t, dir)
		now := func(later time.Duration) time.Time { return clocktest.Set(t, time.Now(), by).Add(later) }
		known := func(when string, want bool) {
			t.Helper()
			if _, ok := j.Get("a"); ok != want {
				t.Errorf("clock set by %v, %s: call a is known: got %v, want %v", by, when, ok, want)
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
		// A call in a reopened journal ended at the latest when it was read.
		if err := j.Accept(newCall("b"), nil); err != nil {
			t.Fatal(err)
		}
		if err := j.Put(Call{ID: "b", State: Done, Ended: time.Now().Add(5 * time.Hour).Round(0)}, nil); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		j = opened(t, dir)
		j.Expire(now(options.Retention + time.Minute))
		if _, ok := j.Get("b"); ok {
			t.Errorf("clock set by %v: call b, which ended in the future, is known an hour after it was read, want it forgotten", by)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestImportOfEarlierLogs checks that the calls in the log of earlier versions are
// imported. If the log is truncated anywhere, its complete records are imported.
func TestImportOfEarlierLogs(t *testing.T) {
	const last = "0000000000000003.log"
	whole, err := os.ReadFile(filepath.Join("testdata/earlier", last))
	if err != nil {
		t.Fatal(err)
	}
	ended := map[int]bool{} // the call that the last record ends, by the bytes of the log
	for cut := range len(whole) + 1 {
		dir := inMemory(t)
		if err := os.CopyFS(dir, os.DirFS("testdata/earlier")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, last), whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time without the log
			j := opened(t, dir)
			pending := j.Pending()
			over, known := j.Get("over")
			if !known && len(pending) != 3 || known && (len(pending) != 4 || over.State != Queued) {
				t.Fatalf("log cut at byte %d: got %d pending calls and the call over as %+v (known: %v), want 4 with over queued, or 3 with over unknown", cut, len(pending), over, known)
			}
			ended[cut] = !known // a long time ago
			if cut == len(whole) {
				checkEarlier(t, pendingBodies(t, j))
			}
			_ = j.Close()
		}
		if logs, _ := filepath.Glob(filepath.Join(dir, "*.log")); len(logs) > 0 {
			t.Errorf("logs after the import: got %v, want none", logs)
		}
		switch kept, err := os.ReadFile(filepath.Join(dir, last+".incomplete")); {
		case cut == len(whole)-1 && !bytes.Equal(kept, whole[:cut]):
			t.Errorf("the log with an incomplete record was not kept: %v", err)
		case cut == len(whole) && !os.IsNotExist(err):
			t.Errorf("a complete log was kept: %v", err)
		}
		_ = os.RemoveAll(dir)
	}
	if ended[len(whole)-1] || !ended[len(whole)] {
		t.Errorf("last record imported, by the length of the log: got %v, want true only for the full length %d", ended, len(whole))
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, last), []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if j, err := Open(dir, options); err == nil {
		t.Error("open with a log of other content: got no error, want one")
		_ = j.Close()
	}
}

func checkEarlier(t *testing.T, pending map[string]string) {
	t.Helper()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	queued := func(id string) Call { c := newCall(id); c.Accepted = at; return c }
	twice := queued("queued")
	twice.Attempts = 2
	answered := Call{ID: "answered", Function: "f", State: Callback, Attempts: 1, Status: 200, Accepted: at, CallbackURL: "http://x/", ContentType: "text/plain", Seconds: 1.5}
	same(t, "of the log", pending, map[string]string{
		"queued":   fmt.Sprintf("%+v %x", twice, "x\n\x00\xff"),
		"long":     fmt.Sprintf("%+v %x", queued("long"), bytes.Repeat([]byte("0123456789abcdef"), 20)),
		"answered": fmt.Sprintf("%+v %x", answered, "answer"),
	})
}

// TestDamagedCalls checks that a damaged record or body is reported, and never run.
func TestDamagedCalls(t *testing.T) {
	dir := t.TempDir()
	j := opened(t, dir)
	defer func() { _ = j.Close() }()
	for _, id := range []string{"a", "b", "c"} {
		if err := j.accept(newCall(id), bytes.Repeat([]byte(id), 2*maxInline)); err != nil {
			t.Fatal(err)
		}
	}
	file := func(id string) (name string) {
		t.Helper()
		h, _, _, err := j.get(id)
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, h.File)
	}
	flip(t, file("a"), 1000)
	if err := os.Remove(file("c")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(j.path())
	if err != nil {
		t.Fatal(err)
	}
	// Unused pages may contain the record as well.
	for at, n := range data {
		if n == '{' && bytes.HasPrefix(data[at:], []byte(`{"id":"b"`)) {
			flip(t, j.path(), int64(at)+20)
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		var damaged *DamagedError
		if _, _, _, err := j.Read(id); !errors.As(err, &damaged) {
			t.Errorf("read the damaged call %s: got %v, want a *DamagedError", id, err)
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		if err := j.Put(Call{ID: id, State: Failed, Ended: time.Now()}, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDamagedDatabase damages the file in many ways. A journal that cannot be read must be
// moved aside with its bodies, and an empty one begun.
func TestDamagedDatabase(t *testing.T) {
	source := inMemory(t)
	j := opened(t, source)
	for i := range 200 {
		if err := j.accept(newCall(fmt.Sprint(i)), bytes.Repeat([]byte("x"), 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.accept(newCall("long"), bytes.Repeat([]byte("x"), 2*maxInline)); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(source, "calls.db"))
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	damages := map[string][]byte{
		"text":      []byte("something else"),
		"long text": bytes.Repeat([]byte("x"), 64<<10),
		"one page":  whole[:page],
		"half":      whole[:len(whole)/2/page*page],
		"odd half":  whole[:len(whole)/2+100],
	}
	for at := 0; at < len(whole); at += page {
		for _, fill := range []byte{0, 0xff} {
			cut := slices.Clone(whole)
			copy(cut[at:], bytes.Repeat([]byte{fill}, page))
			damages[fmt.Sprintf("page %d filled with %d", at/page, fill)] = cut
		}
	}
	moved := 0
	for name, data := range damages {
		dir := inMemory(t)
		files, err := filepath.Glob(filepath.Join(source, "*"+bodySuffix))
		if err != nil || len(files) != 1 {
			t.Fatalf("files of bodies: got %v, %v, want one", files, err)
		}
		body := filepath.Base(files[0])
		if err := os.Link(files[0], filepath.Join(dir, body)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "calls.db"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		j := opened(t, dir)
		aside, err := filepath.Glob(filepath.Join(dir, "damaged-*"))
		if err != nil {
			t.Fatal(err)
		}
		switch n := len(j.Pending()); {
		case len(aside) == 1 && n == 0:
			moved++
			kept, err := os.ReadFile(filepath.Join(aside[0], "calls.db"))
			if err != nil || !bytes.HasPrefix(kept, data[:min(len(data), page)]) {
				t.Errorf("%s: the moved database differs: %v", name, err)
			}
			if _, err := os.Stat(filepath.Join(aside[0], body)); err != nil {
				t.Errorf("%s: the body was not moved with the database: %v", name, err)
			}
		case len(aside) == 0 && n >= 190: // a page of no or of few records
		default:
			t.Errorf("%s: got %d folders moved aside and %d pending calls, want 1 and 0, or 0 and at least 190", name, len(aside), n)
		}
		if err := j.accept(newCall("next"), nil); err != nil {
			t.Errorf("%s: accept a call: %v", name, err)
		}
		if err := j.Close(); err != nil {
			t.Errorf("%s: close the journal: %v", name, err)
		}
	}
	if moved < 5 {
		t.Errorf("damaged databases that were moved aside: got %d of %d, want at least 5", moved, len(damages))
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

// TestGroupCommit checks that operations that arrive during a write share the next one.
func TestGroupCommit(t *testing.T) {
	const callers = 50
	j := opened(t, t.TempDir())
	defer j.Close()
	tx, err := j.db.Begin(true) // a transaction is in progress
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 2*callers)
	for n := range 2 * callers {
		go func() { errs <- j.accept(newCall(fmt.Sprint(n%callers)), []byte("x")) }()
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		j.writer.mu.Lock()
		joined := len(j.writer.pending) == 2*callers
		j.writer.mu.Unlock()
		if joined {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the operations did not join one transaction within %v", patience)
		}
	}
	before := tx.ID()
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	took := 0
	for range 2 * callers {
		switch err := <-errs; {
		case err == nil:
			took++
		case !errors.Is(err, ErrExists):
			t.Error(err)
		}
	}
	after, err := j.db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = after.Rollback() }()
	if took != callers || after.ID() != before+1 {
		t.Errorf("got %d accepted calls in %d transactions, want %d in 1", took, after.ID()-before, callers)
	}
}

// TestModel compares a journal, opened again and again, with a map.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir := inMemory(t)
		defer os.RemoveAll(dir)
		j := opened(t, dir)
		type model struct {
			call Call
			body string
		}
		calls := map[string]*model{}
		var ended []string
		id := func() string { return fmt.Sprint(rapid.IntRange(0, 12).Draw(t, "id")) }
		body := func() string {
			n := rapid.SampledFrom([]int{0, 1, 300, maxInline + 1}).Draw(t, "size")
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
					t.Fatalf("accept call %s (known: %v): got %v, want ErrExists only if known", m.call.ID, known, err)
				} else if !known {
					calls[m.call.ID] = m
				}
			},
			"note": func(t *rapid.T) {
				if m := calls[id()]; m != nil && !m.call.State.Final() {
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
					if err := j.update(m.call, []byte(m.body)); err != nil {
						t.Fatal(err)
					}
				}
			},
			"end": func(t *rapid.T) {
				if m := calls[id()]; m != nil && !m.call.State.Final() {
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
				j = opened(t, dir)
				forget() // calls forgotten early are known again
			},
			"": func(t *rapid.T) {
				pending := map[string]string{}
				files := 0
				for id, m := range calls {
					c, ok := j.Get(id)
					if !ok || c.State != m.call.State || c.Attempts != m.call.Attempts || c.Posts != m.call.Posts || c.Status != m.call.Status {
						t.Fatalf("call %s: got %+v (known: %v), want %+v", id, c, ok, m.call)
					}
					if !m.call.State.Final() {
						pending[id] = fmt.Sprintf("%+v %x", m.call, m.body)
					}
					if len(m.body) > maxInline {
						files++
					}
				}
				got := pendingBodies(t, j)
				for id, want := range pending {
					// A stored time has only the wall clock.
					if got[id] != want {
						t.Fatalf("pending call %s: got %.200s\nwant %.200s", id, got[id], want)
					}
				}
				if len(got) != len(pending) {
					t.Fatalf("pending calls: got %d, want %d", len(got), len(pending))
				}
				if bodies, _ := filepath.Glob(filepath.Join(dir, "*"+bodySuffix)); len(bodies) != files {
					t.Fatalf("files of bodies: got %d, want %d", len(bodies), files)
				}
			},
		})
		_ = j.Close()
	})
}

func FuzzImport(f *testing.F) {
	segments, err := filepath.Glob("testdata/earlier/*.log")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range segments {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[len(logMagic):])
	}
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	j := opened(f, f.TempDir())
	f.Fuzz(func(t *testing.T, data []byte) {
		tx, err := j.db.Begin(true)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		calls := tx.Bucket(bucket)
		if _, err := j.index.importRecords(calls, data); err != nil {
			t.Fatal(err)
		}
		err = calls.ForEach(func(k, v []byte) error {
			if h, _, ok := decode(v); !ok || !bytes.Equal(j.index.key(h.ID), k) {
				return fmt.Errorf("%q has the record %q", k, v)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkAccept(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			j := opened(b, b.TempDir())
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
