package procfs

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestReadFile compares readFile with the contents of files of sizes around that of its buffer.
func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, size := range []int{0, 1, 2047, 2048, 2049, 100_000} {
		want := bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("a file of %d bytes: got %d bytes, error %v", size, len(got), err)
		}
	}
	if _, err := readFile(path + ".missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: got the error %v, want fs.ErrNotExist", err)
	}
	if _, err := readFile(filepath.Dir(path)); err == nil {
		t.Error("a folder: got no error, want one")
	}
}
