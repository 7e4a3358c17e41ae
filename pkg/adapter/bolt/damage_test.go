package bolt_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
)

const page = 4096

// many makes a state file of so many functions that its tree has branches, and
// returns what it holds before and after its last transaction.
func many(t *testing.T) (before, after []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	db := bolt.Open(path)
	var list []function.Function
	for i := range 200 {
		list = append(list, function.Function{Name: fmt.Sprintf("f%03d", i), Command: []string{"x", strings.Repeat("y", 50)}})
	}
	if err := db.Apply(t.Context(), list...); err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // there are free pages then
		if err := db.Reserve(t.Context(), instance.Record{ID: fmt.Sprintf("f000-%d", i), Function: "f000"}); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if before, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	if err := db.Apply(t.Context(), function.Function{Name: "f100", Command: []string{"z"}}, function.Function{Name: "last", Command: []string{"z"}}); err != nil {
		t.Fatal(err)
	}
	if after, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return before, after
}

// try uses a file of these bytes: it is read and written to, or refused with what
// to do; functions are how many it has, -1 when it was refused.
func try(t *testing.T, path string, data []byte) (functions int) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := bolt.Open(path).Look(t.Context())
	written := bolt.Open(path).Apply(t.Context(), function.Function{Name: "new", Command: []string{"x"}})
	for _, err := range []error{err, written} {
		var refused *bolt.FileError
		if err != nil && (!errors.As(err, &refused) || refused.Hint() == "") {
			t.Fatalf("refused by %v", err)
		}
	}
	if err != nil {
		return -1
	}
	return len(l.Functions)
}

func flip(data []byte, from, to int) []byte {
	out := bytes.Clone(data)
	for i := from; i < to; i++ {
		out[i] ^= 0xff
	}
	return out
}

// A file with any of its pages damaged is refused, or it is as it was after one of
// the last transactions; it never ends the program, and never hangs it.
func TestEveryPageDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("one thing after the other, many times")
	}
	_, data := many(t)
	path := filepath.Join(t.TempDir(), "state.db")
	random := rand.New(rand.NewPCG(1, 1))
	refused, pages := 0, len(data)/page
	for n := range pages {
		for name, damaged := range map[string][]byte{
			"flipped": flip(data, n*page, (n+1)*page),
			"zeroed":  slices.Concat(data[:n*page], make([]byte, page), data[(n+1)*page:]),
			"another": slices.Concat(data[:n*page], data[(pages-n-1)*page:(pages-n)*page], data[(n+1)*page:]),
		} {
			switch got := try(t, path, damaged); got {
			case -1:
				refused++
			case 200, 201:
			default:
				t.Errorf("page %d %s: %d functions", n, name, got)
			}
		}
		for range 15 {
			at := n*page + random.IntN(page)
			if random.IntN(2) == 0 {
				at = n*page + random.IntN(256) // where what is on it is said
			}
			one := bytes.Clone(data)
			one[at] = byte(random.Uint32())
			try(t, path, one)
		}
	}
	if refused < pages/2 {
		t.Errorf("%d of %d damaged files were refused", refused, 3*pages)
	}
}

// A file that was cut off anywhere is refused, but where nothing is left.
func TestCutAnywhere(t *testing.T) {
	if testing.Short() {
		t.Skip("one thing after the other, many times")
	}
	_, data := many(t)
	path := filepath.Join(t.TempDir(), "state.db")
	last := -1
	for size := 0; size <= len(data); size += 512 {
		got := try(t, path, data[:size])
		switch {
		case size == 0 && got == 0, got == -1 && last == -1, got == 201:
		default:
			t.Errorf("cut at %d: %d functions", size, got)
		}
		if size > 0 {
			last = got
		}
	}
	if last != 201 {
		t.Error("the whole file was refused")
	}
}

// When the power fails while a transaction is written, any of its pages may be
// there and any not, and the meta page, which comes last, may be there in part:
// the state is the one before or the one after.
func TestPowerLoss(t *testing.T) {
	before, after := many(t)
	path := filepath.Join(t.TempDir(), "state.db")
	var changed []int
	for n := range len(after) / page {
		if n*page >= len(before) || !bytes.Equal(before[n*page:(n+1)*page], after[n*page:(n+1)*page]) {
			changed = append(changed, n)
		}
	}
	if changed[0] > 1 || len(changed) < 4 || changed[1] < 2 {
		t.Fatalf("pages %v differ: expected one meta page and others", changed)
	}
	grown := append(bytes.Clone(before), make([]byte, len(after)-len(before))...)
	random := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		data := bytes.Clone(grown)
		for _, n := range changed[1:] {
			if random.IntN(2) == 0 {
				part := random.IntN(page/512+1) * 512
				copy(data[n*page:], after[n*page:n*page+part])
			}
		}
		if got := try(t, path, data); got != 200 {
			t.Fatalf("without its meta page: %d functions", got)
		}
	}
	meta := changed[0] * page
	for part := 0; part < 100; part += 7 {
		data := bytes.Clone(after)
		copy(data[meta+part:], before[meta+part:meta+page])
		if got := try(t, path, data); got != 200 && got != 201 {
			t.Fatalf("with %d bytes of its meta page: %d functions", part, got)
		}
	}
}

// What is no file is refused at once, and not opened.
func TestNoFile(t *testing.T) {
	dir := t.TempDir()
	pipe, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "link")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Symlink(filepath.Join(dir, "nowhere"), link)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{pipe: "is a pipe", dir: "is a folder", "/dev/zero": "is a device"} {
		done := make(chan error, 2)
		go func() {
			_, err := bolt.Open(path).Look(t.Context())
			done <- err
			done <- bolt.Open(path).Forget(t.Context(), "x")
		}()
		for range 2 {
			select {
			case err := <-done:
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, want %q", path, err, want)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s: it hangs", path)
			}
		}
	}
	if err := bolt.Open(link).Forget(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "link to no file") {
		t.Errorf("a link to no file: %v", err)
	}
}

// An empty file, as mktemp makes one, is filled, and not in its place.
func TestEmptyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	apply(t, path)
	if l, err := bolt.Open(path).Look(t.Context()); err != nil || len(l.Functions) != 1 {
		t.Errorf("%+v, %v", l, err)
	}
}

// fullDisk is a file system of so many bytes, and the way to give it more.
func fullDisk(t *testing.T) (dir string, resize func(bytes int)) {
	t.Helper()
	dir = t.TempDir()
	size := func(n int) string { return fmt.Sprintf("size=%d,mode=700", n) }
	if err := unix.Mount("gfaas-test", dir, "tmpfs", 0, size(page)); err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			t.Skip("SKIPPED: only root can mount a small file system")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir, func(n int) {
		t.Helper()
		if err := unix.Mount("gfaas-test", dir, "tmpfs", unix.MS_REMOUNT, size(n)); err != nil {
			t.Fatal(err)
		}
	}
}

// On a disk that is full at whichever write, what fails leaves the state as it
// was, says why, and does once there is room.
func TestFullDisk(t *testing.T) {
	dir, resize := fullDisk(t)
	path := filepath.Join(dir, "state.db")
	done := 0
	for room := 1; done < 12 && room < 100; room++ {
		resize(room * page)
		for done < 12 {
			fn := function.Function{Name: fmt.Sprintf("f%d", done), Command: []string{strings.Repeat("x", page)}}
			err := bolt.Open(path).Apply(t.Context(), fn)
			if l, err := bolt.Open(path).Look(t.Context()); err != nil || len(l.Functions) != done && len(l.Functions) != done+1 {
				t.Fatalf("with %d pages, after %d functions: %d, %v", room, done, len(l.Functions), err)
			}
			if err != nil {
				var full *bolt.FileError
				if !errors.Is(err, unix.ENOSPC) || !errors.As(err, &full) || !strings.Contains(full.Hint(), "make room") {
					t.Fatalf("with %d pages: %v", room, err)
				}
				break
			}
			done++
		}
	}
	if done < 12 {
		t.Errorf("only %d functions", done)
	}
	left, err := fs.Glob(os.DirFS(dir), "*")
	if err != nil || !slices.Equal(left, []string{"state.db"}) {
		t.Errorf("left are %v, %v", left, err)
	}
}

// A repair keeps the file, and what can still be read of it.
func TestRepair(t *testing.T) {
	_, data := many(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	damaged := 0
	for n := 2; n < len(data)/page; n++ {
		bad := flip(data, n*page, (n+1)*page)
		if try(t, path, bad) != -1 {
			continue
		}
		damaged++
		db := bolt.Open(path)
		kept, err := db.Salvage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		aside, err := db.Replace(t.Context(), kept.Functions, kept.Instances)
		if err != nil {
			t.Fatal(err)
		}
		if old, err := os.ReadFile(aside); err != nil || !bytes.Equal(old, bad) {
			t.Errorf("page %d: what was put aside in %s is not what was there: %v", n, aside, err)
		}
		l, err := db.Look(t.Context())
		if err != nil || len(l.Functions) != len(kept.Functions) || len(l.Instances) != len(kept.Instances) {
			t.Errorf("page %d: %d functions and %d instances, %v", n, len(l.Functions), len(l.Instances), err)
		}
	}
	whole, err := bolt.Open(path).Salvage(t.Context())
	if err != nil || damaged < 5 {
		t.Errorf("%d damaged files, %v", damaged, err)
	}
	if err := os.WriteFile(path, flip(data, page/2, page/2+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if whole, err = bolt.Open(path).Salvage(t.Context()); err != nil || len(whole.Functions) != 201 || len(whole.Instances) != 3 {
		t.Errorf("of a whole file: %d functions and %d instances, %v", len(whole.Functions), len(whole.Instances), err)
	}
}
