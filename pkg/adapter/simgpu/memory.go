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

// What hook/sim/shared.h says of gpuN.state: the numbers it begins with, and
// the bytes that are locked by who is on the device.
const (
	magic    = 0x47534d31 // "GSM1"
	layout   = 6
	slots    = 2048
	lockSlot = 1<<20 + 1
)

// ProcessMemory is what each process occupies, in bytes, of the device of that
// index: allocations of every kind, resident managed memory and its contexts.
// It is what NVML tells by process, for who has the real library open and so cannot
// ask the simulated one (see pkg/adapter/nvml). A device that nobody is on
// is no error; a process of a pid namespace that is not this one's or below
// it cannot be named and is left out, and so is one that a checkpoint has taken
// off the device.
//
// To be called from a process that is not on the device itself: closing the
// state file would drop its locks.
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
		bytes, away, err := slotMemory(f, h.slot)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if !away {
			used[h.pid] += bytes
		}
	}
	return used, nil
}

// holder is a process that has a slot.
type holder struct{ slot, pid int }

// holders appends the processes in the slots from first to before last that have a pid
// here. The kernel names any one of the locks in a range: what is left and right of it
// is looked at next.
func holders(f *os.File, first, last int, all []holder) ([]holder, error) {
	if first >= last {
		return all, nil
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: lockSlot + int64(first), Len: int64(last - first)}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil || lock.Type == unix.F_UNLCK {
		return all, err
	}
	from := max(int(lock.Start-lockSlot), first)
	to := from + 1
	if lock.Len != 1 { // who looks whether anybody is on the device locks all bytes
		to = last
		if lock.Len > 0 {
			to = min(int(lock.Start+lock.Len-lockSlot), last)
		}
	}
	if lock.Pid > 0 {
		for slot := from; slot < to; slot++ {
			all = append(all, holder{slot, int(lock.Pid)})
		}
	}
	all, err := holders(f, first, from, all)
	if err != nil {
		return nil, err
	}
	return holders(f, to, last, all)
}

// slotMemory reads what a slot that is held counts, and whether its process is
// off the device.
func slotMemory(f *os.File, slot int) (bytes gpu.Bytes, away bool, err error) {
	var head [16]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return 0, false, err
	}
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(head[4*i:]) }
	if word(0) != magic || word(1) != layout {
		return 0, false, errors.New("written by another version of the simulated driver")
	}
	var mem [8 + 4]byte
	at := int64(word(2)) + int64(slot)*int64(word(3)) + 8 // behind the slot's serial
	if _, err := f.ReadAt(mem[:], at); err != nil {
		return 0, false, err
	}
	return gpu.Bytes(binary.NativeEndian.Uint64(mem[:])), binary.NativeEndian.Uint32(mem[8:]) != 0, nil
}
