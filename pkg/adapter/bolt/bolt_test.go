package bolt_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

func TestDB(t *testing.T) {
	instancetest.RunCatalog(t, func(t *testing.T) (one, other ports.Catalog) {
		path := filepath.Join(t.TempDir(), "a", "b", "state.db")
		return bolt.Open(path, nil), bolt.Open(path, nil)
	})
}

func apply(t *testing.T, path string) {
	t.Helper()
	err := bolt.Open(path, nil).Apply(t.Context(), function.Function{Name: "f", Command: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFileModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	path := filepath.Join(dir, "state.db")
	if _, err := bolt.Open(path, nil).List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder exists after a read, want none")
	}
	apply(t, path)
	apply(t, path)
	modes := func(want map[string]os.FileMode) {
		t.Helper()
		for file, want := range want {
			info, err := os.Stat(file)
			if err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: mode %v, %v; want %v", file, info.Mode().Perm(), err, want)
			}
		}
	}
	modes(map[string]os.FileMode{dir: 0o700, path: 0o600, path + ".previous": 0o600})
	if err := os.Chmod(path, 0o644); err != nil { // for users with read access
		t.Fatal(err)
	}
	apply(t, path)
	modes(map[string]os.FileMode{path: 0o644, path + ".previous": 0o644})
}

func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	apply(t, path)
	holder, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if err := syscall.Flock(int(holder.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	var locked *bolt.LockedError
	if _, err := bolt.Open(path, nil).List(t.Context()); !errors.As(err, &locked) || !locked.Locked() {
		t.Errorf("read of a locked file: got the error %v, want a LockedError", err)
	}
	if err := bolt.Open(path, nil).Forget(t.Context(), "x"); !errors.As(err, &locked) {
		t.Errorf("write to a locked file: got the error %v, want a LockedError", err)
	}
}

// A lock on a file that has been replaced since it was opened does not count: a writer
// that continued from this generation would undo the newer one.
func TestLockReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	apply(t, path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	apply(t, path)
	if held, err := bolt.TryLock(f, syscall.LOCK_EX); held || err != nil {
		t.Errorf("lock of a replaced generation: got %v, %v; want false", held, err)
	}
}

func TestReadersShare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	apply(t, path)
	held, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	if list, err := bolt.Open(path, nil).List(t.Context()); err != nil || len(list.Functions) != 1 {
		t.Errorf("second reader: got %v, %v; want one function", list, err)
	}
}

func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.db")
	if err := os.WriteFile(text, []byte(strings.Repeat("not a database\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	newer := filepath.Join(dir, "newer.db")
	apply(t, newer)
	data, err := os.ReadFile(newer)
	if err != nil {
		t.Fatal(err)
	}
	_, image, _ := bytes.Cut(data, []byte("\n"))
	data = append(bolt.Header("4", image), image...)
	if err := os.WriteFile(newer, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{text: "not a state file", newer: "another version of gfaas: its format is 4, want 3", dir: ""} {
		_, err := bolt.Open(path, nil).List(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want an error with %s", path, err, want)
		}
		var unusable *bolt.FileError
		if err := bolt.Open(path, nil).Forget(t.Context(), "x"); !errors.As(err, &unusable) || !strings.Contains(unusable.Hint(), "GFAAS_STATE") {
			t.Errorf("%s: change of the state: got the error %v, want one with a hint about GFAAS_STATE", path, err)
		}
	}
	if _, err := bolt.Open(newer, nil).Repair(t.Context()); err == nil {
		t.Error("Repair of a file of a later version: got no error, want one")
	}
	if now, err := os.ReadFile(newer); err != nil || !bytes.Equal(now, data) {
		t.Errorf("the file of a later version was changed: %v", err)
	}
}

// List does not read an unchanged file again.
func TestUnchangedIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	apply(t, path)
	old := time.Now().Add(-time.Hour) // old enough for its mtime to identify its content
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	db := bolt.Open(path, nil)
	first, err := db.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	holder, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if err := syscall.Flock(int(holder.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if again, err := db.List(t.Context()); err != nil || again.Revision != first.Revision || len(again.Functions) != 1 {
		t.Errorf("List of an unchanged file: got %+v, %v; want revision %d with one function", again, err, first.Revision)
	}
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil {
		t.Fatal(err)
	}
	var locked *bolt.LockedError
	if _, err := db.List(t.Context()); !errors.As(err, &locked) {
		t.Errorf("List of a file that may have changed: got the error %v, want a LockedError", err)
	}
}

// TestReplacedIsRead checks that a file that replaces the state file is read, even if it
// has the same size and mtime.
func TestReplacedIsRead(t *testing.T) {
	old := time.Now().Add(-time.Hour)
	write := func(path string, text []byte) {
		if err := errors.Join(os.WriteFile(path, text, 0o600), os.Chtimes(path, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	for description, put := range map[string]func(path string, text []byte){
		"written in place": write, // as cp -p does
		"renamed over": func(path string, text []byte) {
			write(path+".next", text)
			if err := os.Rename(path+".next", path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(description, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			apply(t, path)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := bolt.Open(path, nil).Remove(t.Context(), "f"); err != nil {
				t.Fatal(err)
			}
			without, err := os.ReadFile(path)
			if err != nil || len(without) != len(text) {
				t.Fatalf("state without the function: got %d bytes, %v; want %d", len(without), err, len(text))
			}
			put(path, without)
			db := bolt.Open(path, nil)
			first, err := db.List(t.Context())
			if err != nil || len(first.Functions) != 0 {
				t.Fatalf("state before the replacement: got %+v, %v; want no functions", first, err)
			}
			// The times of a file advance in steps of some milliseconds.
			for end := time.Now().Add(time.Minute); ; {
				put(path, text)
				list, err := db.List(t.Context())
				if err != nil || len(list.Functions) == 1 || time.Now().After(end) {
					if err != nil || list.Revision == first.Revision {
						t.Errorf("state after the replacement: got %+v, %v; want the function, in a later revision", list, err)
					}
					return
				}
			}
		})
	}
}

// Watch returns when the file is created, replaced or removed.
func TestWatchFile(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "state.db"), filepath.Join(dir, "other.db")
	db := bolt.Open(path, nil)
	l, err := db.Watch(t.Context(), 0)
	if err != nil || len(l.Functions) != 0 {
		t.Fatalf("Watch of a missing file: got %+v, %v; want no functions", l, err)
	}
	if err := bolt.Open(other, nil).Apply(t.Context(), function.Function{Name: "g", Command: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func() error
		want   string
	}{
		{func() error { apply(t, path); return nil }, "f"},
		{func() error { return os.Rename(other, path) }, "g"},
		{func() error { return os.Remove(path) }, ""},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		if l, err = db.Watch(t.Context(), l.Revision); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, fn := range l.Functions {
			got += fn.Name
		}
		if got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func BenchmarkList(b *testing.B) {
	path := filepath.Join(b.TempDir(), "state.db")
	var many []function.Function
	for i := range 1000 {
		many = append(many, function.Function{Name: fmt.Sprintf("f%d", i), Command: []string{"x"}})
	}
	db := bolt.Open(path, nil)
	if err := db.Apply(b.Context(), many...); err != nil {
		b.Fatal(err)
	}
	poll := func(b *testing.B, db *bolt.DB) {
		if l, err := db.List(b.Context()); err != nil || len(l.Functions) != len(many) {
			b.Fatal(err)
		}
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			poll(b, bolt.Open(path, nil))
		}
	})
	b.Run("just written", func(b *testing.B) { // read, and nothing parsed
		for b.Loop() {
			now := time.Now()
			if err := os.Chtimes(path, now, now); err != nil {
				b.Fatal(err)
			}
			poll(b, db)
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(path, old, old); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			poll(b, db)
		}
	})
}
