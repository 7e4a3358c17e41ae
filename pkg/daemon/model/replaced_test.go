package model_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// longAgo is the mtime of all files in a package store or a reproducible image layer.
var longAgo = time.Unix(1, 0)

// replace replaces a file by renaming another over it: the inode differs, the size and mtime are equal.
func (w *world) replace(path string, text []byte) {
	w.t.Helper()
	next := path + ".next"
	if err := errors.Join(os.WriteFile(next, text, 0o600), os.Chtimes(next, longAgo, longAgo), os.Rename(next, path)); err != nil {
		w.t.Fatal(err)
	}
}

// overwrite writes into a file and resets its mtime.
func (w *world) overwrite(path string, text []byte) {
	w.t.Helper()
	if err := errors.Join(os.WriteFile(path, text, 0o600), os.Chtimes(path, longAgo, longAgo)); err != nil {
		w.t.Fatal(err)
	}
}

// evict evicts all models that are not held.
func (w *world) evict() {
	w.t.Helper()
	c := w.client()
	c.putFile("", "big", w.file("big", 3, 4<<20-1000))
	c.call("", wire.Request{Op: wire.OpRemove, Name: "big"})
}

// TestReplacedFile checks that a model is never loaded from a file with other content, even if size and mtime
// are those of the file that was put. Putting the file again creates the next generation. A file with the
// same content is loaded as before.
func TestReplacedFile(t *testing.T) {
	memory, err := os.MkdirTemp("/dev/shm", "models")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(memory) })
	restart := func(w *world) {
		w.stop()
		w.start()
	}
	for what, row := range map[string]struct {
		index   bool // the model is an index of two shards; the second one is replaced
		change  func(w *world, path string, other []byte)
		forget  func(w *world) // makes the model leave the GPU; nil: eviction
		content bool           // the replacement has the old content
	}{
		"renamed over":              {change: (*world).replace},
		"written in place":          {change: (*world).overwrite},
		"renamed over, restart":     {change: (*world).replace, forget: restart},
		"written in place, restart": {change: (*world).overwrite, forget: restart},
		"record of an earlier daemon": {change: (*world).replace, forget: func(w *world) {
			w.stop()
			w.catalogue.mu.Lock()
			for key, r := range w.catalogue.records {
				for i, f := range r.Files {
					r.Files[i] = wire.File{Path: f.Path, Size: f.Size, MTime: f.MTime}
				}
				w.catalogue.records[key] = r
			}
			w.catalogue.mu.Unlock()
			w.start()
		}},
		"written through a mapping": {change: func(w *world, path string, other []byte) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				w.t.Fatal(err)
			}
			defer f.Close()
			at, err := unix.Mmap(int(f.Fd()), 0, len(other), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				w.t.Fatal(err)
			}
			copy(at, other)
			if err := errors.Join(unix.Munmap(at), os.Chtimes(path, longAgo, longAgo)); err != nil {
				w.t.Fatal(err)
			}
		}},
		"symbolic link": {change: func(w *world, path string, other []byte) {
			w.replace(path+".other", other)
			if err := errors.Join(os.Remove(path), os.Symlink(path+".other", path)); err != nil {
				w.t.Fatal(err)
			}
		}},
		"shard renamed over":              {index: true, change: (*world).replace},
		"shard written in place":          {index: true, change: (*world).overwrite},
		"shard written in place, restart": {index: true, change: (*world).overwrite, forget: restart},
		"same content":                    {change: (*world).replace, content: true},
		"same content, restart":           {change: (*world).replace, content: true, forget: restart},
		"shard of the same content":       {index: true, change: (*world).replace, content: true},
	} {
		t.Run(what, func(t *testing.T) {
			w := serve(t)
			w.dir = filepath.Join(memory, t.Name())
			one, path := w.file("one", 1, 100), w.file("two", 2, 0, 70_000)
			put, other := path, must(os.ReadFile(path))
			if row.index {
				put = w.write("m.safetensors.index.json", []byte(`{"weight_map":{"t":"one","tt":"two"}}`))
				w.overwrite(one, must(os.ReadFile(one)))
			}
			w.overwrite(put, must(os.ReadFile(put)))
			w.overwrite(path, other)
			if !row.content {
				other = bytes.Clone(other)
				other[len(other)-1]++
			}
			c := w.client()
			c.putFile("", "m", put)
			was, weights := c.stat("m"), c.read("m")
			row.change(w, path, other)
			if row.forget != nil {
				row.forget(w)
			} else {
				w.evict()
			}
			c = w.client()
			if now := c.stat("m"); now.State != wire.StateFile {
				t.Fatalf("model m after its eviction: got %+v, want State %v", now, wire.StateFile)
			}
			if row.content {
				a, _ := c.call("", wire.Request{Op: wire.OpGet, Name: "m"})
				if a.Generation != 1 || a.SHA256 != was.SHA256 || !bytes.Equal(c.read("m"), weights) {
					t.Errorf("get of the same content: got %+v, want Generation 1, SHA256 %s and the same weights", a, was.SHA256)
				}
				return
			}
			for range 2 {
				c.call(wire.CodeChanged, wire.Request{Op: wire.OpGet, Name: "m"})
				if now := c.stat("m"); now.State != wire.StateFile || now.Generation != 1 || now.SHA256 != was.SHA256 || w.gpu.Used() != 0 {
					t.Errorf("model m after a refused load: got %+v with %v of GPU memory, want State %v, Generation 1, SHA256 %s and no memory", now, w.gpu.Used(), wire.StateFile, was.SHA256)
				}
			}
			c.putFile("", "m", put)
			sum := sha256.Sum256(must(os.ReadFile(put)))
			if now := c.stat("m"); now.Generation != 2 || now.SHA256 != hex.EncodeToString(sum[:]) {
				t.Errorf("model m put again: got %+v, want Generation 2 and SHA256 %x", now, sum)
			}
			if now := c.read("m"); len(now) != len(weights) || now[len(now)-1] != other[len(other)-1] {
				t.Error("weights of m put again: got the old ones, want those of the new file")
			}
		})
	}
}

// TestReplacedShard checks that putting an index again while its model is on the GPU creates the next
// generation if a shard was replaced, whatever the shard's size and mtime.
func TestReplacedShard(t *testing.T) {
	for what, change := range map[string]func(*world, string, []byte){"renamed over": (*world).replace, "written in place": (*world).overwrite} {
		t.Run(what, func(t *testing.T) {
			w := serve(t)
			w.file("one", 1, 100)
			path := w.file("two", 2, 0, 70_000)
			text := must(os.ReadFile(path))
			w.overwrite(path, text)
			index := w.write("m.safetensors.index.json", []byte(`{"weight_map":{"t":"one","tt":"two"}}`))
			c, holder := w.client(), w.client()
			c.putFile("", "m", index)
			first, _ := holder.call("", wire.Request{Op: wire.OpGet, Name: "m"})
			c.putFile("", "m", index)
			if s := c.stat("m"); s.Generation != 1 || s.Loads != 1 {
				t.Errorf("model m after the same index was put again: got %+v, want Generation 1 and Loads 1", s)
			}
			other := bytes.Clone(text)
			other[len(other)-1]++
			change(w, path, other)
			c.putFile("", "m", index)
			if s := c.stat("m"); first.Generation != 1 || s.Generation != 2 {
				t.Errorf("generations: got %d at first and %d after the put of a replaced shard, want 1 and 2", first.Generation, s.Generation)
			}
			if now := c.read("m"); now[len(now)-1] != other[len(other)-1] {
				t.Error("weights of m put again: got the old ones, want those of the new shard")
			}
		})
	}
}
