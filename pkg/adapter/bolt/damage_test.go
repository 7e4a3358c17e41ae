package bolt_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// contents is all that a state file holds.
type contents struct {
	functions []function.Function
	instances []instance.Record
	models    []wire.Record
}

// read returns the contents of a state file, and the notes for the user.
func read(t *testing.T, path string) (c contents, notes []string, err error) {
	t.Helper()
	db := bolt.Open(path, func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) })
	l, err := db.List(t.Context())
	if err != nil {
		return c, notes, err
	}
	models, err := db.Models(t.Context())
	return contents{l.Functions, l.Instances, models}, notes, err
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// generations creates a state file and returns its last two generations.
func generations(t *testing.T) (path string, previous, current []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "state.db")
	db := bolt.Open(path, nil)
	f := function.Function{Name: "f", Command: []string{"serve", "--model", "resnet"}, Dir: "/srv"}
	f.GPUMem, f.Env = 2*gpu.GiB, map[string]string{"KEY": "value"}
	err := db.Apply(t.Context(), f, function.Function{Name: "g", Command: []string{"x"}})
	if err == nil {
		err = db.PutModel(t.Context(), wire.Record{Tenant: "default", Name: "m"})
	}
	if err == nil {
		err = db.Reserve(t.Context(), instance.Record{ID: "f-0", Function: "f", Runtime: instance.Process})
	}
	if err != nil {
		t.Fatal(err)
	}
	if previous, err = os.ReadFile(path + ".previous"); err != nil {
		t.Fatal(err)
	}
	if current, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return path, previous, current
}

// wantRefused checks that a damaged state file is neither read nor written to, and
// that the error has a hint.
func wantRefused(t *testing.T, description, path string) {
	t.Helper()
	_, notes, err := read(t, path)
	for _, err := range []error{err, bolt.Open(path, nil).Forget(t.Context(), "x")} {
		var refused *bolt.FileError
		if !errors.As(err, &refused) || !strings.Contains(refused.Hint(), "'gfaas doctor --repair' puts the damaged file aside") || notes != nil {
			t.Errorf("%s: %v, notes %q; want an error with a hint", description, err, notes)
		}
	}
}

// damages calls f with damaged versions of a file: each has one changed byte, or another
// length. Not all lengths are tried, and few of the zero bytes.
func damages(data []byte, f func(description string, damaged []byte)) {
	for at := range data {
		if data[at] == 0 && at%97 != 0 { // most of the file is zero
			continue
		}
		for _, mask := range []byte{0x01, 0xff} {
			damaged := bytes.Clone(data)
			damaged[at] ^= mask
			f(fmt.Sprintf("byte %d ^ %#x", at, mask), damaged)
		}
	}
	for size := 1; size < len(data); size++ {
		if size < 200 || len(data)-size < 50 || size%64 == 0 {
			f(fmt.Sprintf("cut at %d", size), data[:size])
		}
	}
	f("longer by a byte", append(bytes.Clone(data), 0))
}

// A damaged file is refused, or its previous generation is used, with a note.
func TestDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: tries thousands of damaged files, one after the other")
	}
	path, previous, current := generations(t)
	alone := filepath.Join(t.TempDir(), "state.db")
	write(t, path, previous)
	before, _, err := read(t, path)
	if err != nil || len(before.functions) != 2 || len(before.models) != 1 {
		t.Fatalf("state before the damage: got %+v, %v; want two functions and one model", before, err)
	}
	tried := 0
	damages(current, func(description string, damaged []byte) {
		tried++
		write(t, alone, damaged)
		wantRefused(t, description, alone)

		write(t, path, damaged)
		got, notes, err := read(t, path)
		if err != nil || !reflect.DeepEqual(got, before) {
			t.Errorf("%s: %+v, %v; want the previous generation, %+v", description, got, err, before)
		}
		for _, want := range []string{"state file " + path, "previous generation, " + path + ".previous", "may lack the last change", "'gfaas doctor --repair'"} {
			if len(notes) != 1 || !strings.Contains(notes[0], want) {
				t.Errorf("%s: notes %q; want one that says %q", description, notes, want)
			}
		}
	})
	if tried < 1000 {
		t.Errorf("%d damaged files were tried, want at least 1000", tried)
	}
	wantFiles(t, alone, "state.db")
}

// Reading a damaged file gives the note once. A write continues from the previous
// generation, and keeps the damaged file.
func TestWriteToDamaged(t *testing.T) {
	path, previous, current := generations(t)
	damaged := current[:len(current)-1]
	write(t, path, damaged)
	var notes []string
	db := bolt.Open(path, func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) })
	for range 3 {
		if _, err := db.List(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Apply(t.Context(), function.Function{Name: "h", Command: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	aside, err := filepath.Glob(path + ".damaged-*")
	if err != nil || len(aside) != 1 {
		t.Fatalf("kept damaged files: got %v, %v; want one", aside, err)
	}
	if len(notes) != 2 || !strings.Contains(notes[1], "renamed the damaged state file to "+aside[0]) {
		t.Errorf("notes %q; want the second to name %s", notes, aside[0])
	}
	for file, want := range map[string][]byte{aside[0]: damaged, path + ".previous": previous} {
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs from before (%v), want it unchanged", file, err)
		}
	}
	got, notes, err := read(t, path)
	if err != nil || notes != nil || len(got.functions) != 3 || len(got.instances) != 0 || len(got.models) != 1 {
		t.Errorf("state after the repair: got %+v, notes %q, %v; want 3 functions and no instance", got, notes, err)
	}
}

// A previous generation that another user could have made, that is damaged, or that
// is from before a reset is not used.
func TestUnusablePrevious(t *testing.T) {
	for description, spoil := range map[string]func(path string) error{
		"writable by other users": func(path string) error { return os.Chmod(path+".previous", 0o666) },
		"damaged too":             func(path string) error { return os.Truncate(path+".previous", 1000) },
		"empty":                   func(path string) error { return os.Truncate(path+".previous", 0) },
		"a pipe": func(path string) error {
			return errors.Join(os.Remove(path+".previous"), unix.Mkfifo(path+".previous", 0o600))
		},
		"from before a reset": func(path string) error {
			err := os.Remove(path)
			apply(t, path)
			return err
		},
	} {
		path, _, _ := generations(t)
		if err := errors.Join(spoil(path), os.Truncate(path, 1000)); err != nil {
			t.Fatal(err)
		}
		wantRefused(t, description, path)
	}
}

// Repair keeps a damaged file, continues from the newest intact generation, and adds records.
func TestRepair(t *testing.T) {
	record := instance.Record{ID: "g-0", Function: "g", Runtime: instance.Process, GPUs: []string{"sim"}}
	for _, c := range []struct {
		description              string
		damageCurrent, damagePre bool
		functions, instances     int
	}{
		{"whole", false, false, 2, 2},
		{"damaged", true, false, 2, 1},
		{"damaged, the previous generation too", true, true, 0, 1},
	} {
		path, previous, current := generations(t)
		if c.damageCurrent {
			current = current[:5000]
			write(t, path, current)
		}
		if c.damagePre {
			write(t, path+".previous", previous[:5000])
		}
		db := bolt.Open(path, nil)
		aside, err := db.Repair(t.Context(), record)
		if err != nil || (aside != "") != c.damageCurrent {
			t.Errorf("%s: Repair kept the damaged file as %q, %v; want a name only if the current file is damaged (%v)", c.description, aside, err, c.damageCurrent)
		}
		if c.damageCurrent {
			if old, err := os.ReadFile(aside); err != nil || !bytes.Equal(old, current) {
				t.Errorf("%s: the kept file differs from the damaged one (%v), want the same bytes", c.description, err)
			}
		}
		got, notes, err := read(t, path)
		if err != nil || notes != nil || len(got.functions) != c.functions || len(got.instances) != c.instances || !reflect.DeepEqual(got.instances[len(got.instances)-1], record) {
			t.Errorf("%s: %+v, notes %q, %v; want %d functions and %d instances", c.description, got, notes, err, c.functions, c.instances)
		}
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if aside, err := db.Repair(t.Context()); err != nil || aside != "" {
			t.Errorf("%s: second Repair: kept a file as %q, %v; want none", c.description, aside, err)
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, whole) {
			t.Errorf("%s: Repair changed an intact file (%v), want it unchanged", c.description, err)
		}
	}
}

// A path that is not a regular file is refused at once, and not opened.
func TestNoFile(t *testing.T) {
	dir := t.TempDir()
	pipe, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "link")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Symlink(filepath.Join(dir, "nowhere"), link)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{pipe: "is a pipe", dir: "is a folder", "/dev/zero": "is a device"} {
		done := make(chan error, 2)
		go func() {
			_, err := bolt.Open(path, nil).List(t.Context())
			done <- err
			done <- bolt.Open(path, nil).Forget(t.Context(), "x")
		}()
		for range 2 {
			select {
			case err := <-done:
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, want %q", path, err, want)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s: no result after a minute, want an error at once", path)
			}
		}
	}
	if err := bolt.Open(link, nil).Forget(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "symbolic link to a missing file") {
		t.Errorf("path is a symbolic link to a missing file: got the error %v, want one that says so", err)
	}
}

// A state file behind a symbolic link stays there, with its previous generation.
func TestSymbolicLink(t *testing.T) {
	path, link := filepath.Join(t.TempDir(), "state.db"), filepath.Join(t.TempDir(), "link.db")
	apply(t, path)
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if err := bolt.Open(link, nil).Apply(t.Context(), function.Function{Name: "g", Command: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, link} {
		if got, _, err := read(t, name); err != nil || len(got.functions) != 2 {
			t.Errorf("%s: %+v, %v; want 2 functions", name, got, err)
		}
	}
	wantFiles(t, path, "state.db", "state.db.previous")
	wantFiles(t, link, "link.db")
}

// An empty file, such as mktemp creates, is a state with nothing in it.
func TestEmptyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	write(t, path, nil)
	if got, notes, err := read(t, path); err != nil || notes != nil || len(got.functions) != 0 {
		t.Errorf("empty file: got %+v, notes %q, %v; want an empty state without notes", got, notes, err)
	}
	apply(t, path)
	if got, _, err := read(t, path); err != nil || len(got.functions) != 1 {
		t.Errorf("empty file after a change: got %+v, %v; want one function", got, err)
	}
}

// Files of formats 1 and 2 are read, and of format 3 from the next write on. The
// old file remains as the previous generation.
func TestOldFormats(t *testing.T) {
	for _, name := range []string{"schema1.db", "schema2.db"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "state.db")
		write(t, path, data)
		old, notes, err := read(t, path)
		if err != nil || notes != nil || len(old.functions) != 2 || old.functions[0].GPUMem != 2*gpu.GiB || old.functions[0].Dir != "/srv" ||
			len(old.instances) != 1 || old.instances[0].ID != "f-0" || len(old.models) != 1 || old.models[0].Name != "m" {
			t.Fatalf("%s: got %+v, notes %q, %v; want the records of the old file, without notes", name, old, notes, err)
		}
		if err := bolt.Open(path, nil).Forget(t.Context(), "f-0"); err != nil {
			t.Fatal(err)
		}
		want := old
		want.instances = nil
		if now, _, err := read(t, path); err != nil || !reflect.DeepEqual(now, want) {
			t.Errorf("%s: after a write %+v, %v; want %+v", name, now, err, want)
		}
		now, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(now, []byte("gfaas-state 3 ")) {
			t.Errorf("%s: file after a change begins with %.20q, %v; want \"gfaas-state 3 \"", name, now, err)
		}
		write(t, path, now[:100])
		if got, notes, err := read(t, path); err != nil || len(notes) != 1 || !reflect.DeepEqual(got, old) {
			t.Errorf("%s: as the previous generation %+v, notes %q, %v; want %+v", name, got, notes, err, old)
		}
	}
}

// A damaged file of format 2 is refused, or it is read in the state after its last or
// second to last transaction.
func TestOldFormatDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: tries thousands of damaged files, one after the other")
	}
	data, err := os.ReadFile(filepath.Join("testdata", "schema2.db"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "state.db")
	write(t, path, data)
	now, _, err := read(t, path)
	if err != nil {
		t.Fatal(err)
	}
	before := now
	before.instances = nil
	refused := 0
	damages(data, func(description string, damaged []byte) {
		write(t, path, damaged)
		got, _, err := read(t, path)
		var file *bolt.FileError
		switch {
		case errors.As(err, &file) && file.Hint() != "":
			refused++
		case err != nil:
			t.Errorf("%s: got the error %v, want a state", description, err)
		case !reflect.DeepEqual(got, now) && !reflect.DeepEqual(got, before):
			t.Errorf("%s: got %+v, want the last state or the one before", description, got)
		}
	})
	if refused < 500 {
		t.Errorf("%d were refused, want at least 500", refused)
	}
	cycles := 0
	for n := 2; n < len(data)/page; n++ { // a branch page that leads to itself
		damaged := bytes.Clone(data)
		to := damaged[n*page:]
		binary.NativeEndian.PutUint16(to[8:], 1)
		binary.NativeEndian.PutUint16(to[10:], 1)
		binary.NativeEndian.PutUint64(to[16+8:], uint64(n))
		write(t, path, damaged)
		if _, _, err := read(t, path); err != nil {
			cycles++
		}
	}
	if cycles == 0 {
		t.Error("damaged files in which a page of the tree is a cycle: got 0, want at least 1")
	}
}

const page = 4096

// smallDisk mounts a file system in memory, and returns a function that changes its
// size and its mode.
func smallDisk(t *testing.T) (dir string, remount func(bytes int, flags uintptr)) {
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
	return dir, func(n int, flags uintptr) {
		t.Helper()
		if err := unix.Mount("gfaas-test", dir, "tmpfs", unix.MS_REMOUNT|flags, size(n)); err != nil {
			t.Fatal(err)
		}
	}
}

// A write that fails on a full disk says why, leaves the state as it was, and
// succeeds once there is room.
func TestFullDisk(t *testing.T) {
	dir, remount := smallDisk(t)
	path := filepath.Join(dir, "state.db")
	done, full := 0, 0
	for room := 1; done < 12 && room < 200; room++ {
		remount(room*page, 0)
		for done < 12 {
			fn := function.Function{Name: fmt.Sprintf("f%02d", done), Command: []string{strings.Repeat("x", page)}}
			err := bolt.Open(path, nil).Apply(t.Context(), fn)
			if err == nil {
				done++
			}
			if got, notes, err := read(t, path); err != nil || notes != nil || len(got.functions) != done {
				t.Fatalf("disk of %d pages: got %d functions, notes %q, %v; want %d without notes", room, len(got.functions), notes, err, done)
			}
			if err != nil {
				var file *bolt.FileError
				if !errors.Is(err, unix.ENOSPC) || !errors.As(err, &file) || !strings.Contains(file.Hint(), "make room") {
					t.Fatalf("disk of %d pages: got the error %v, want %v with a hint to make room", room, err, unix.ENOSPC)
				}
				full++
				break
			}
		}
	}
	if done < 12 || full < 12 {
		t.Errorf("got %d changes, and the disk was full %d times, want at least 12 each", done, full)
	}
	wantFiles(t, path, "state.db", "state.db.previous")
}

// On a read-only file system the state can be read, also its previous generation.
func TestReadOnlyDisk(t *testing.T) {
	dir, remount := smallDisk(t)
	remount(100*page, 0)
	made, previous, current := generations(t)
	want, _, err := read(t, made)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "state.db")
	write(t, path, current)
	write(t, path+".previous", previous)
	remount(100*page, unix.MS_RDONLY)
	if got, notes, err := read(t, path); err != nil || notes != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("state: got %+v, notes %q, %v; want %+v", got, notes, err, want)
	}
	var file *bolt.FileError
	if err := bolt.Open(path, nil).Forget(t.Context(), "f-0"); !errors.As(err, &file) || !errors.Is(err, unix.EROFS) {
		t.Errorf("a write: %v, want EROFS", err)
	}
	remount(100*page, 0)
	write(t, path, slices.Concat(current, current))
	remount(100*page, unix.MS_RDONLY)
	want.instances = nil
	if got, notes, err := read(t, path); err != nil || len(notes) != 1 || !reflect.DeepEqual(got, want) {
		t.Errorf("damaged: %+v, notes %q, %v; want %+v", got, notes, err, want)
	}
}
