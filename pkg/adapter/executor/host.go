package executor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Host is host memory that the daemon and its executors map (a memfd). The kernel frees it with its last
// user. Pages that were never written, or were discarded, take no memory.
type Host struct {
	file *os.File
	mem  []byte
}

// NewHost creates host memory of the given size.
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

// Bytes returns the memory.
func (h *Host) Bytes() []byte { return h.mem }

// Discard frees the memory of all pages that lie entirely within the range.
func (h *Host) Discard(offset, size int64) {
	page := int64(os.Getpagesize())
	from, to := (offset+page-1)/page*page, (offset+size)/page*page
	if from < to {
		_ = unix.Madvise(h.mem[from:to], unix.MADV_REMOVE)
	}
}

// Close unmaps the memory.
func (h *Host) Close() {
	_ = unix.Munmap(h.mem)
	_ = h.file.Close()
}
