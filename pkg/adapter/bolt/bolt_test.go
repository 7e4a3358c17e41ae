package bolt_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/adapter/bolt/storetest"
	"github.com/gfaas/gfaas/pkg/function"
)

func TestDB(t *testing.T) {
	storetest.Run(t, func(t *testing.T) bolt.Store { return bolt.Open(filepath.Join(t.TempDir(), "a", "b", "state.db")) })
}

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) bolt.Store { return &bolt.Memory{} })
}

func apply(t *testing.T, path string) {
	t.Helper()
	err := bolt.Open(path).Apply(t.Context(), function.Function{Name: "f", Command: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFileModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	path := filepath.Join(dir, "state.db")
	if _, err := bolt.Open(path).Functions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("reading made the folder")
	}
	apply(t, path)
	for file, want := range map[string]os.FileMode{dir: 0o700, path: 0o600} {
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v; want %v", file, info.Mode().Perm(), err, want)
		}
	}
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
	if _, err := bolt.Open(path).Functions(t.Context()); !errors.As(err, &locked) || !locked.Locked() {
		t.Errorf("read of a locked file: %v", err)
	}
	if err := bolt.Open(path).Forget(t.Context(), "x"); !errors.As(err, &locked) {
		t.Errorf("write to a locked file: %v", err)
	}
}

func TestReadersShare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	apply(t, path)
	held, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if list, err := bolt.Open(path).Functions(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("a second reader got %v, %v", list, err)
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
	db, err := bbolt.Open(newer, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte("2")) })
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{text: "invalid database", newer: `schema "2"`, dir: ""} {
		_, err := bolt.Open(path).Functions(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want it to say %s", path, err, want)
		}
		var unusable *bolt.FileError
		if err := bolt.Open(path).Forget(t.Context(), "x"); !errors.As(err, &unusable) || !strings.Contains(unusable.Hint(), "GFAAS_STATE") {
			t.Errorf("%s: written to, or nothing said to do: %v", path, err)
		}
	}
}
