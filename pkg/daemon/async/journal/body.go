package journal

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// Body takes a body that is to be kept: a short one in memory, a longer one in a
// file of its own. A nil *Body is an empty one.
type Body struct {
	j      *Journal
	inline []byte
	file   *os.File
	size   int64 // of the file
	sum    uint32
}

// NewBody returns an empty body. Discard must follow, whatever became of it.
func (j *Journal) NewBody() *Body { return &Body{j: j} }

// Write appends to the body.
func (b *Body) Write(p []byte) (int, error) {
	if b.file == nil && len(b.inline)+len(p) <= b.j.sizes.inline {
		b.inline = append(b.inline, p...)
		return len(p), nil
	}
	if b.file == nil {
		if err := b.spill(); err != nil {
			return 0, fmt.Errorf("journal: %w", err)
		}
	}
	n, err := b.file.Write(p)
	b.size += int64(n)
	b.sum = crc32.Update(b.sum, castagnoli(), p[:n])
	if err != nil {
		err = fmt.Errorf("journal: %w", err)
	}
	return n, err
}

// spill moves what is in memory to a file.
func (b *Body) spill() error {
	b.j.mu.Lock()
	path := filepath.Join(b.j.dir, fmt.Sprintf("%016x%s", b.j.bodies, bodySuffix))
	b.j.bodies++
	b.j.mu.Unlock()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(b.inline); err != nil {
		return errors.Join(err, f.Close(), os.Remove(path))
	}
	b.file, b.size, b.sum, b.inline = f, int64(len(b.inline)), crc32.Checksum(b.inline, castagnoli()), nil
	return nil
}

// Size is how much was written.
func (b *Body) Size() int64 {
	if b == nil {
		return 0
	}
	return b.size + int64(len(b.inline))
}

// Discard gives up what no call has.
func (b *Body) Discard() {
	if b != nil && b.file != nil {
		_ = b.file.Close()
		_ = os.Remove(b.file.Name())
		b.file = nil
	}
}

// keep leaves the file to the call that has it.
func (b *Body) keep() {
	if b != nil && b.file != nil {
		_ = b.file.Close()
		b.file = nil
	}
}

// sync makes sure that the file survives a power cut.
func (b *Body) sync() error {
	if b == nil || b.file == nil {
		return nil
	}
	if err := errors.Join(b.file.Sync(), syncDir(b.j.dir)); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// name is that of the file, within the folder; empty is none.
func (b *Body) name() string {
	if b == nil || b.file == nil {
		return ""
	}
	return filepath.Base(b.file.Name())
}

// removeBody removes a body's file; empty is none.
func (j *Journal) removeBody(name string) {
	if name != "" {
		_ = os.Remove(filepath.Join(j.dir, name)) // else the next start does
	}
}

// openBody opens the body that a record says.
func (j *Journal) openBody(h head, inline []byte) (io.ReadCloser, int64, error) {
	if h.File == "" {
		return io.NopCloser(bytes.NewReader(inline)), int64(len(inline)), nil
	}
	path := filepath.Join(j.dir, h.File)
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, gone(err, path)
	}
	sum := crc32.New(castagnoli())
	size, err := io.Copy(sum, f)
	if err == nil && (size != h.Size || sum.Sum32() != h.CRC) {
		err = &DamagedError{path, "the body of call " + h.ID + " is damaged"}
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
