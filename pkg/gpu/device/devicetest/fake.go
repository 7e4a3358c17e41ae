// Package devicetest provides Fake, a device.Device whose memory consists of files. Tests
// of the model daemon (pkg/daemon/model) use it instead of a GPU.
package devicetest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
)

// fakeGrain is the granularity of allocations.
const fakeGrain = 64 * gpu.KiB

// fakeDirt is the initial value of all allocated bytes: a driver may return memory with old
// contents.
const fakeDirt = 0xdb

// Fake is a Device whose memory consists of unlinked files. All uses of one Fake share one
// GPU; the exported descriptor of memory is its file.
type Fake struct {
	ID string    // UUID
	In gpu.Bytes // memory size

	mu     sync.Mutex
	used   gpu.Bytes
	shared map[uint64]*fakeFile // by inode
	staged gpu.Bytes
	failed func(call string) error
}

// fakeFile describes memory that may have several users.
type fakeFile struct {
	size  gpu.Bytes
	users int // number of Memory values that refer to it
}

// fails returns the error that a call must return, or nil.
func (f *Fake) fails(call string) error {
	f.mu.Lock()
	check := f.failed
	f.mu.Unlock()
	if check == nil {
		return nil
	}
	return check(call)
}

// Fail sets a function that returns the error of each call (alloc, export, stage, up, down
// or wait); nil makes the call succeed.
func (f *Fake) Fail(check func(call string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = check
}

// Used returns how much memory is allocated.
func (f *Fake) Used() gpu.Bytes {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.used
}

// Take allocates n bytes for other users of the GPU, or frees them if n is negative.
func (f *Fake) Take(n gpu.Bytes) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used += n
}

// UUID returns ID.
func (f *Fake) UUID() string { return f.ID }

// Granularity returns 64 KiB.
func (f *Fake) Granularity() gpu.Bytes { return fakeGrain }

// Close has no effect.
func (f *Fake) Close() error { return nil }

// fakeMemory is a device.Memory of a Fake.
type fakeMemory struct {
	of       *Fake
	file     *os.File
	inode    uint64
	size     gpu.Bytes
	readOnly bool
}

// Alloc allocates memory, as a new file.
func (f *Fake) Alloc(size gpu.Bytes) (device.Memory, error) {
	if size <= 0 {
		return nil, fmt.Errorf("allocate %d bytes: expected more than 0", int64(size))
	}
	if err := f.fails("alloc"); err != nil {
		return nil, err
	}
	size = (size + fakeGrain - 1) / fakeGrain * fakeGrain
	f.mu.Lock()
	defer f.mu.Unlock()
	if size > f.In-f.used {
		return nil, fmt.Errorf("allocate GPU memory: %w", device.ErrFull)
	}
	fd, err := unix.MemfdCreate("fake gpu memory", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "fake gpu memory")
	if _, err := file.Write(bytes.Repeat([]byte{fakeDirt}, int(size))); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	m := &fakeMemory{of: f, file: file, inode: inode(file), size: size}
	if f.shared == nil {
		f.shared = map[uint64]*fakeFile{}
	}
	f.shared[m.inode] = &fakeFile{size: size, users: 1}
	f.used += size
	return m, nil
}

func inode(f *os.File) uint64 {
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// Import maps the memory of a descriptor that this Fake exported.
func (f *Fake) Import(file *os.File, size gpu.Bytes) (device.Memory, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	there := f.shared[inode(file)]
	if there == nil || there.size != size {
		return nil, errors.New("map GPU memory: the descriptor is none of this GPU's memory of that size")
	}
	own, err := duplicate(file)
	if err != nil {
		return nil, err
	}
	there.users++
	return &fakeMemory{of: f, file: own, inode: inode(file), size: size, readOnly: true}, nil
}

func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func (m *fakeMemory) Size() gpu.Bytes { return m.size }

func (m *fakeMemory) Export() (*os.File, error) {
	if err := m.of.fails("export"); err != nil {
		return nil, err
	}
	return duplicate(m.file)
}

// Free frees the memory if it has no other user.
func (m *fakeMemory) Free() error {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	there := m.of.shared[m.inode]
	if there == nil {
		return errors.New("free GPU memory: it is free")
	}
	if there.users--; there.users == 0 {
		delete(m.of.shared, m.inode)
		m.of.used -= m.size
	}
	return m.file.Close()
}

// fakeStage is a device.Stage of a Fake. It copies synchronously.
type fakeStage struct {
	of     *Fake
	buffer []byte
}

// Stage allocates a buffer on the host.
func (f *Fake) Stage(size gpu.Bytes) (device.Stage, error) {
	if err := f.fails("stage"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.staged += size
	return &fakeStage{f, make([]byte, size)}, nil
}

// Staged returns how much host memory is pinned.
func (f *Fake) Staged() gpu.Bytes {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.staged
}

func (s *fakeStage) Buffer() []byte { return s.buffer }

func (s *fakeStage) own(m device.Memory, at gpu.Bytes, n int, call string) (*fakeMemory, error) {
	own, ok := m.(*fakeMemory)
	if !ok || own.of != s.of {
		return nil, errors.New("copy: the memory is another device's")
	}
	if err := within(m, at, n, len(s.buffer)); err != nil {
		return nil, err
	}
	return own, s.of.fails(call)
}

func (s *fakeStage) Up(m device.Memory, at gpu.Bytes, n int) error {
	own, err := s.own(m, at, n, "up")
	if err != nil {
		return err
	}
	if own.readOnly {
		return errors.New("copy to the GPU: the memory may only be read")
	}
	_, err = own.file.WriteAt(s.buffer[:n], int64(at))
	return err
}

func (s *fakeStage) Down(m device.Memory, at gpu.Bytes, n int) error {
	own, err := s.own(m, at, n, "down")
	if err != nil {
		return err
	}
	_, err = own.file.ReadAt(s.buffer[:n], int64(at))
	return err
}

func (s *fakeStage) Wait() error { return s.of.fails("wait") }

func (s *fakeStage) Free() error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.staged -= gpu.Bytes(len(s.buffer))
	return nil
}

// within returns an error if a copy of n bytes exceeds m or the buffer.
func within(m device.Memory, at gpu.Bytes, n, buffer int) error {
	if n < 0 || n > buffer || at < 0 || gpu.Bytes(n) > m.Size()-at {
		return fmt.Errorf("copy %d bytes at %d: there are %d, and a buffer of %d", n, int64(at), int64(m.Size()), buffer)
	}
	return nil
}
