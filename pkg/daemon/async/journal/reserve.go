package journal

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// reserveSize suffices to end some thousand calls.
const reserveSize = 1 << 20

// reserve is a file whose disk space is used to end calls when the disk is full.
type reserve struct {
	path string

	mu    sync.Mutex
	spent bool // the file may not exist, because the disk is or was full
}

// spend frees the reserve, so that a call can be ended on a full disk. Accept fails until
// restore succeeds.
func (r *reserve) spend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spent = true
	_ = os.Remove(r.path)
}

// restore allocates the reserve unless it exists. Accept calls it first, so that the
// remaining space of a full disk is used to end calls.
func (r *reserve) restore() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.spent {
		return nil
	}
	err := allocate(r.path, reserveSize)
	if r.spent = err != nil; r.spent {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// allocate creates a file of the given size with allocated disk blocks.
func allocate(path string, size int64) error {
	if info, err := os.Stat(path); err == nil && info.Size() == size {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = f.Write(make([]byte, size))
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
