// Package job defines the protocol between gfaas-kerneld and its executors. An executor (hook/kernel)
// is a process that runs jobs on one GPU. It performs the steps of a job in this order: unload and load
// modules, save blocks to the host, free and allocate blocks, upload, duplicate, zero, run kernels,
// download.
//
// The daemon numbers blocks and modules. Host offsets refer to a block of memory that the daemon and
// the executor both map. pkg/daemon/kernel creates jobs; pkg/adapter/executor sends them.
package job

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// Job is one unit of work for an executor.
type Job struct {
	ID         uint64
	Unload     []uint32
	Load       []Module
	Limit      int64 // limit on the executor's GPU memory in bytes, free blocks included
	Save       []Copy
	Free       []uint32
	Alloc      []Block
	Upload     []Copy
	Duplicate  []Duplicate
	Zero       []uint32
	Iterations int
	Kernels    []Kernel
	Download   []Copy
}

// Module is code to load under a number: PTX, a cubin or a fatbin.
type Module struct {
	Number uint32
	PTX    string
}

// Block is a block of GPU memory.
type Block struct {
	Number uint32
	Size   int64
}

// Copy is a transfer between the start of a block and host memory.
type Copy struct {
	Block        uint32
	Offset, Size int64 // range of the host memory
}

// Duplicate is a copy between two blocks of the same size.
type Duplicate struct{ To, From uint32 }

// Kernel is one kernel launch.
type Kernel struct {
	Module      uint32
	Name        string
	Grid, Block [3]int
	Shared      int
	Args        []Arg
}

// Arg is an argument: Value or, if that is empty, an address in a block.
type Arg struct {
	Value  []byte
	Block  uint32
	Offset int64
}

// Step is a step of a job.
type Step uint32

// The steps, in order of execution. NotStarted stands for the time before the first one.
const (
	NotStarted Step = iota
	Unload
	Load
	Save
	Free
	Alloc
	Upload
	Copying
	Zero
	Kernels
	Download
)

// Outcome is the result of a job.
type Outcome struct {
	ID        uint64
	Code      uint32        // driver error; 0: success
	Step      Step          // the step that failed
	Index     uint32        // index of the failed item within its step; AnyIndex if unknown
	Fatal     bool          // the executor can run no further jobs
	Link      time.Duration // loading and linking modules
	CopyIn    time.Duration // saving, allocating, clearing and uploading; 0 for a job without kernels
	GPU       time.Duration // the kernels
	CopyOut   time.Duration // downloading
	Allocated int64         // bytes that the executor has allocated, free blocks included
	Text      string        // message of the driver
}

// ErrTimeout reports that a job made no progress for too long.
var ErrTimeout = errors.New("timed out without progress")

// AnyIndex is the Outcome.Index of a failure that may concern any item of the step.
const AnyIndex = ^uint32(0)

// Driver error codes that the daemon distinguishes.
const (
	CodeOutOfMemory    = 2
	CodeNoBinary       = 209
	CodeInvalidPTX     = 218
	CodeUnsupportedPTX = 222
	CodeNotFound       = 500
)

// Hello is the first message of an executor.
type Hello struct {
	Ready      bool
	Name       string // of the GPU; if not Ready, the reason
	Arch       int    // 90 for 9.0
	MaxGrid    [3]int
	MaxBlock   [3]int
	MaxThreads int
	MaxShared  int
	Total      int64 // size of the GPU's memory in bytes
}

// Types of message.
const (
	KindHello    = 1
	KindJob      = 2
	KindProgress = 3
	KindDone     = 4
)

// HeaderSize is the size of a message's header, which holds its length and type.
const HeaderSize = 8

// MaxMessage limits a message from an executor, in bytes.
const MaxMessage = 64 << 10

const smallest = 512

// Footprint returns how many bytes a block of the given size takes. It rounds the size up to a multiple
// of an eighth of the next lower power of two, so that freed blocks fit other requests. Example: 9 MiB
// and a byte take 10 MiB.
func Footprint(size int64) int64 {
	if size <= smallest {
		return smallest
	}
	power := int64(1) << (bits.Len64(uint64(size-1)) - 1)
	step := power / 8
	return power + (size-power+step-1)/step*step
}

var order = binary.LittleEndian

type writer struct{ b []byte }

func (w *writer) u32(v uint32)  { w.b = order.AppendUint32(w.b, v) }
func (w *writer) u64(v uint64)  { w.b = order.AppendUint64(w.b, v) }
func (w *writer) count(n int)   { w.u32(uint32(n)) }
func (w *writer) text(s string) { w.count(len(s)); w.b = append(w.b, s...) }

// list writes a list whose elements have a fixed size.
func list[T any](w *writer, elements []T) {
	w.count(len(elements))
	w.b, _ = binary.Append(w.b, order, elements) // it cannot fail for these types
}

// Append appends the job as a message, header included.
func (j *Job) Append(b []byte) []byte {
	const usual = 512
	start := len(b)
	w := &writer{append(slices.Grow(b, usual), make([]byte, HeaderSize)...)}
	w.u64(j.ID)
	list(w, j.Unload)
	w.count(len(j.Load))
	for _, m := range j.Load {
		w.u32(m.Number)
		w.text(m.PTX + "\x00")
	}
	w.u64(uint64(j.Limit))
	list(w, j.Save)
	list(w, j.Free)
	list(w, j.Alloc)
	list(w, j.Upload)
	list(w, j.Duplicate)
	list(w, j.Zero)
	w.count(len(j.Kernels))
	w.count(j.Iterations)
	for i := range j.Kernels {
		w.kernel(&j.Kernels[i])
	}
	list(w, j.Download)
	order.PutUint32(w.b[start:], uint32(len(w.b)-start-HeaderSize))
	order.PutUint32(w.b[start+4:], KindJob)
	return w.b
}

func (w *writer) kernel(k *Kernel) {
	w.u32(k.Module)
	w.text(k.Name)
	for _, n := range [...]int{k.Grid[0], k.Grid[1], k.Grid[2], k.Block[0], k.Block[1], k.Block[2], k.Shared} {
		w.u32(uint32(n))
	}
	w.count(len(k.Args))
	for i := range k.Args {
		a := &k.Args[i]
		if w.count(len(a.Value)); len(a.Value) > 0 {
			w.b = append(w.b, a.Value...)
			continue
		}
		w.u32(a.Block)
		w.u64(uint64(a.Offset))
	}
}

var errTruncated = errors.New("the executor sent an incomplete message")

type reader struct {
	b         []byte
	truncated bool
}

func (r *reader) next(n int) []byte {
	if r.truncated || n < 0 || n > len(r.b) {
		r.truncated = true
		return make([]byte, min(max(n, 8), 8))
	}
	data := r.b[:n]
	r.b = r.b[n:]
	return data
}

func (r *reader) u32() uint32  { return order.Uint32(r.next(4)) }
func (r *reader) u64() uint64  { return order.Uint64(r.next(8)) }
func (r *reader) text() string { return string(r.next(int(min(r.u32(), MaxMessage)))) }

func (r *reader) end() error {
	if r.truncated || len(r.b) > 0 {
		return errTruncated
	}
	return nil
}

// Header decodes a header. It fails if the message would exceed MaxMessage.
func Header(b []byte) (length int, kind uint32, err error) {
	length, kind = int(order.Uint32(b)), order.Uint32(b[4:])
	if length > MaxMessage {
		return 0, 0, fmt.Errorf("the executor sent a message of %d bytes, expected at most %d", length, MaxMessage)
	}
	return length, kind, nil
}

// ParseHello decodes a Hello.
func ParseHello(b []byte) (Hello, error) {
	r := &reader{b: b}
	h := Hello{Ready: r.u32() != 0, Name: r.text()}
	h.Arch = int(r.u32()) * 10
	h.Arch += int(r.u32())
	for i := range h.MaxGrid {
		h.MaxGrid[i] = int(r.u32())
	}
	for i := range h.MaxBlock {
		h.MaxBlock[i] = int(r.u32())
	}
	h.MaxThreads, h.MaxShared = int(r.u32()), int(r.u32())
	h.Total = int64(r.u64())
	return h, r.end()
}

// ParseOutcome decodes an Outcome.
func ParseOutcome(b []byte) (Outcome, error) {
	r := &reader{b: b}
	o := Outcome{ID: r.u64(), Code: r.u32(), Step: Step(r.u32()), Index: r.u32(), Fatal: r.u32() != 0,
		Link: time.Duration(r.u64()), CopyIn: time.Duration(r.u64()), GPU: time.Duration(r.u64()), CopyOut: time.Duration(r.u64()), Allocated: int64(r.u64()), Text: r.text()}
	return o, r.end()
}
