package journal

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gfaas/gfaas/pkg/owndir"
)

const (
	bodySuffix = ".body"
	maxInline  = 64 << 10 // bytes of the longest body within a record
)

// Body receives the body of a request or an answer: up to maxInline bytes in memory, a
// longer body in a file of its own. A nil *Body is empty.
type Body struct {
	dir    string // of the file
	inline []byte
	file   *os.File
	size   int64  // of the file
	sum    uint32 // CRC-32C of the file
	err    error  // of the first failed write
}

// NewBody returns an empty body. The caller must call Discard in the end, even after the
// body was stored.
func (j *Journal) NewBody() *Body { return &Body{dir: j.dir} }

// Write appends to the body. Err returns its first error.
func (b *Body) Write(p []byte) (int, error) {
	n, err := b.write(p)
	if err != nil {
		err = fmt.Errorf("journal: %w", err)
		b.err = cmp.Or(b.err, err)
	}
	return n, err
}

// Err returns the error of the first failed Write, or nil.
func (b *Body) Err() error {
	if b == nil {
		return nil
	}
	return b.err
}

func (b *Body) write(p []byte) (int, error) {
	if b.file == nil && len(b.inline)+len(p) <= maxInline {
		b.inline = append(b.inline, p...)
		return len(p), nil
	}
	if b.file == nil {
		f, err := os.CreateTemp(b.dir, "*"+bodySuffix)
		if err != nil {
			return 0, err
		}
		b.file = f
		inline := b.inline
		b.inline = nil
		if _, err := b.write(inline); err != nil {
			return 0, err
		}
	}
	n, err := b.file.Write(p)
	b.size += int64(n)
	b.sum = crc32.Update(b.sum, castagnoli(), p[:n])
	return n, err
}

// Size returns the number of bytes written.
func (b *Body) Size() int64 {
	if b == nil {
		return 0
	}
	return b.size + int64(len(b.inline))
}

// Discard removes the body's file unless a stored call refers to it.
func (b *Body) Discard() {
	if b != nil && b.file != nil {
		_ = b.file.Close()
		_ = os.Remove(b.file.Name())
		b.file = nil
	}
}

// detach detaches the file, which a stored call now refers to.
func (b *Body) detach() {
	if b != nil && b.file != nil {
		_ = b.file.Close()
		b.file = nil
	}
}

// record encodes a call together with the body. It syncs the body's file.
func (b *Body) record(c Call) ([]byte, error) {
	h := head{Call: c}
	if b == nil {
		return encode(h, nil)
	}
	if b.file != nil {
		if err := errors.Join(b.file.Sync(), owndir.Sync(b.dir)); err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
		h.File, h.Size, h.CRC = filepath.Base(b.file.Name()), b.size, b.sum
	}
	return encode(h, b.inline)
}

// openBody opens the body of a record, after verifying the checksum of its file.
func openBody(dir string, h head, inline []byte) (io.ReadCloser, int64, error) {
	if h.File == "" {
		return io.NopCloser(bytes.NewReader(inline)), int64(len(inline)), nil
	}
	path := filepath.Join(dir, filepath.Base(h.File))
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = &DamagedError{path, "the file is missing"}
	}
	if err != nil {
		return nil, 0, err
	}
	sum := crc32.New(castagnoli())
	size, err := io.Copy(sum, f)
	if err == nil && (size != h.Size || sum.Sum32() != h.CRC) {
		err = &DamagedError{path, "the body of call " + NameOf(h.ID) + " is damaged"}
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, size, nil
}
