package simgpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Constants of the file gpuN.state, as in hook/sim/shared.h: the words at its start, and the offset of
// the bytes that the users of its slots lock.
const (
	magic    = 0x47534d31 // "GSM1"
	layout   = 6
	slots    = 2048
	lockSlot = 1<<20 + 1
)

// ProcessMemory returns the bytes that each process occupies on the device with the given index: all
// allocations, resident managed memory and contexts. It replaces NVML for processes that have the real
// library open and cannot also open the simulated one (see pkg/adapter/nvml).
//
// A device without processes is not an error. The result omits processes outside of this PID namespace
// and its descendants, which have no PID here, and processes that a checkpoint has moved to the host.
//
// The calling process must not use the device itself: closing the state file would drop its locks.
func ProcessMemory(dir string, index int) (map[int]gpu.Bytes, error) {
	name := fmt.Sprintf("gpu%d.state", index)
	path := filepath.Join(dir, name)
	root, err := open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return map[int]gpu.Bytes{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return map[int]gpu.Bytes{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	used := map[int]gpu.Bytes{}
	holders, err := holders(f, 0, slots, nil)
	if err != nil {
		return nil, fmt.Errorf("locks of %s: %w", path, err)
	}
	for _, h := range holders {
		bytes, checkpointed, err := slotMemory(f, h.slot)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if !checkpointed {
			used[h.pid] += bytes
		}
	}
	return used, nil
}

// holder is a process that uses a slot.
type holder struct{ slot, pid int }

// holders appends the processes that use slots from first to before last and have a PID here. The kernel
// reports any one lock in a range, so holders continues on both sides of it.
func holders(f *os.File, first, last int, found []holder) ([]holder, error) {
	if first >= last {
		return found, nil
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: lockSlot + int64(first), Len: int64(last - first)}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil || lock.Type == unix.F_UNLCK {
		return found, err
	}
	from := max(int(lock.Start-lockSlot), first)
	to := from + 1
	if lock.Len != 1 { // a process that tests whether the device is in use locks all bytes
		to = last
		if lock.Len > 0 {
			to = min(int(lock.Start+lock.Len-lockSlot), last)
		}
	}
	if lock.Pid > 0 {
		for slot := from; slot < to; slot++ {
			found = append(found, holder{slot, int(lock.Pid)})
		}
	}
	found, err := holders(f, first, from, found)
	if err != nil {
		return nil, err
	}
	return holders(f, to, last, found)
}

// slotMemory returns the memory recorded in a slot, and whether a checkpoint has moved it off the device.
func slotMemory(f *os.File, slot int) (bytes gpu.Bytes, checkpointed bool, err error) {
	var head [16]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return 0, false, err
	}
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(head[4*i:]) }
	if word(0) != magic || word(1) != layout {
		return 0, false, errors.New("written by another version of the simulated driver")
	}
	var mem [8 + 4]byte
	at := int64(word(2)) + int64(slot)*int64(word(3)) + 8 // after the slot's serial number
	if _, err := f.ReadAt(mem[:], at); err != nil {
		return 0, false, err
	}
	return gpu.Bytes(binary.NativeEndian.Uint64(mem[:])), binary.NativeEndian.Uint32(mem[8:]) != 0, nil
}
