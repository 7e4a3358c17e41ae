package lockfile

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func TestTake(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if _, err := AcquireExisting(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no file: %v", err)
	}
	l, err := Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, acquire := range map[string]func(string) (*Lock, error){"Acquire": Acquire, "AcquireExisting": AcquireExisting} {
		var held *HeldError
		if _, err := acquire(path); !errors.As(err, &held) || held.PID != os.Getpid() || held.Path != path {
			t.Errorf("%s of what is held: %v", name, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = AcquireExisting(path); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}

func TestAwait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Await(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Await(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := Await(t.Context(), path)
		got <- err
	}()
	_ = first.Close()
	if err := <-got; err != nil {
		t.Errorf("once it is free: %v", err)
	}
}

// TestRemovedSince checks that a lock on a removed file does not count for the file that has its
// path by now.
func TestRemovedSince(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	late, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if err := first.Remove(); err != nil {
		t.Fatal(err)
	}
	next, err := Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := lockCurrent(late); l != nil || err != nil {
		t.Errorf("took what was removed: %v, %v", l, err)
	}
	old := &Lock{late}
	if old.Current() || !next.Current() {
		t.Error("the path leads to the wrong one")
	}
	if err := old.Remove(); err != nil || !next.Current() {
		t.Errorf("its removal took the next one's file: %v", err)
	}
}

// TestHoldersAreAlone checks that holders that remove the file while others open it never hold the
// lock at the same time.
func TestHoldersAreAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var holders, held atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 300 {
				l, err := Acquire(path)
				if err != nil {
					continue
				}
				if holders.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				held.Add(1)
				holders.Add(-1)
				if err := l.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if held.Load() == 0 {
		t.Error("nobody ever held it")
	}
}

// TestLink checks that a file can be locked through a symbolic link.
func TestLink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	link := path + ".link"
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Symlink(path, link)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(link)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := lockCurrent(f); l == nil || err != nil || !l.Current() {
		t.Errorf("by a link: %v, %v", l, err)
	}
	var held *HeldError
	if _, err := AcquireExisting(path); !errors.As(err, &held) {
		t.Errorf("of what is locked by a link: %v", err)
	}
}

// TestAcquireRefusesLinks checks that Acquire does not write to the target of a symbolic link.
func TestAcquireRefusesLinks(t *testing.T) {
	dir := t.TempDir()
	precious, path := filepath.Join(dir, "precious"), filepath.Join(dir, "link.lock")
	if err := errors.Join(os.WriteFile(precious, []byte("precious"), 0o600), os.Symlink(precious, path)); err != nil {
		t.Fatal(err)
	}
	if l, err := Acquire(path); err == nil {
		_ = l.Close()
		t.Error("a link was taken")
	}
	if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
		t.Errorf("the file that the link leads to holds %q, %v; want precious", text, err)
	}
}
