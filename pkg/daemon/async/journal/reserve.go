package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// reserveSize is enough to end some thousand calls with.
const reserveSize = 1 << 20

func (j *Journal) reservePath() string { return filepath.Join(j.dir, "reserve") }

// spendReserve frees the reserve, for a call that cannot be ended for want of
// space. New calls are refused until it is there again.
func (j *Journal) spendReserve() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.short {
		j.short = true
		_ = os.Remove(j.reservePath())
	}
}

// roomForNew says why no new call can be taken: what is left of the disk is for
// those that are to end.
func (j *Journal) roomForNew() error {
	j.mu.Lock()
	short := j.short
	j.mu.Unlock()
	if !short {
		return nil
	}
	j.io.Lock()
	defer j.io.Unlock()
	j.tidy(nil)
	return j.restoreReserve()
}

// restoreReserve takes the reserve, if it is not there. The caller holds io.
func (j *Journal) restoreReserve() error {
	if j.closed {
		return os.ErrClosed
	}
	err := takeSpace(j.reservePath(), reserveSize)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.short = err != nil
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// takeSpace makes a file whose blocks are the disk's already.
func takeSpace(path string, size int64) error {
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
