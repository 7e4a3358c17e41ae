package executor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Host is memory of the host that the daemon and its executors map. It has no
// name and is gone with the last of them; what of it was never written, or was
// discarded, takes no memory.
type Host struct {
	file *os.File
	mem  []byte
}

// NewHost makes memory of that size, none of which is taken yet.
func NewHost(size int64) (*Host, error) {
	fd, err := unix.MemfdCreate("gfaas-objects", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memory for objects: %w", err)
	}
	h := &Host{file: os.NewFile(uintptr(fd), "gfaas-objects")}
	if err := unix.Ftruncate(fd, size); err != nil {
		_ = h.file.Close()
		return nil, fmt.Errorf("memory for objects: %w", err)
	}
	if h.mem, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE); err != nil {
		_ = h.file.Close()
		return nil, fmt.Errorf("memory for objects: %w", err)
	}
	return h, nil
}

// Bytes is the memory.
func (h *Host) Bytes() []byte { return h.mem }

// Discard gives back the whole pages of a part of it.
func (h *Host) Discard(offset, size int64) {
	page := int64(os.Getpagesize())
	from, to := (offset+page-1)/page*page, (offset+size)/page*page
	if from < to {
		_ = unix.Madvise(h.mem[from:to], unix.MADV_REMOVE)
	}
}

// Close gives it back.
func (h *Host) Close() {
	_ = unix.Munmap(h.mem)
	_ = h.file.Close()
}
