// Package job is what gfaas-kerneld and its executors say to each other: jobs,
// and what becomes of them. An executor (hook/kernel) is a process that does what
// a job says on one GPU, in this order: unload and load modules, save blocks to
// the host, free and allocate blocks, upload, copy, zero, run kernels, download.
//
// Blocks and modules go by numbers that the daemon gives; the host's side of
// copies is one piece of memory that both map.
package job

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// Job is one piece of work.
type Job struct {
	ID         uint64
	Unload     []uint32
	Load       []Module
	Limit      int64 // bytes that all blocks of the executor may take, free ones that it keeps included
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

// Module is PTX text.
type Module struct {
	Number uint32
	PTX    string
}

// Block is memory of the GPU.
type Block struct {
	Number uint32
	Size   int64
}

// Copy is between a block, from its beginning, and the host.
type Copy struct {
	Block        uint32
	Offset, Size int64 // of the host's memory
}

// Duplicate is a copy from one block to another of its size.
type Duplicate struct{ To, From uint32 }

// Kernel is one launch.
type Kernel struct {
	Module      uint32
	Name        string
	Grid, Block [3]int
	Shared      int
	Args        []Arg
}

// Arg is a value or, without one, a place in a block.
type Arg struct {
	Value  []byte
	Block  uint32
	Offset int64
}

// Step is a part of a job.
type Step uint32

// The steps, in the order in which they are done.
const (
	None Step = iota
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

// Outcome is what became of a job.
type Outcome struct {
	ID    uint64
	Code  uint32 // of the driver; 0 is success
	Step  Step   // where it failed
	Index uint32 // of what failed among those of its step; AnyIndex when that is not known
	Fatal bool   // the executor is of no use any more
	GPU   time.Duration
	Held  int64  // bytes that its blocks take, free ones included
	Text  string // what the driver says
}

// ErrTimeout says that a job made no progress for as long as it may.
var ErrTimeout = errors.New("no progress")

// AnyIndex is the index of a failure that may be any one's.
const AnyIndex = ^uint32(0)

// Codes of the driver that mean something to the daemon.
const (
	CodeInvalidValue   = 1
	CodeOutOfMemory    = 2
	CodeNoBinary       = 209
	CodeInvalidPTX     = 218
	CodeUnsupportedPTX = 222
	CodeNotFound       = 500
	CodeNoResources    = 701
)

// Hello is what an executor says first.
type Hello struct {
	Ready      bool
	Name       string // of the GPU, or what is missing
	Arch       int    // 90 for 9.0
	MaxGrid    [3]int
	MaxBlock   [3]int
	MaxThreads int
	MaxShared  int
	Total      int64 // bytes of the GPU's memory
}

// Kinds of message.
const (
	KindHello    = 1
	KindJob      = 2
	KindProgress = 3
	KindDone     = 4
)

// HeaderSize is what comes before a message: its length and its kind.
const HeaderSize = 8

// MaxMessage is the longest message from an executor.
const MaxMessage = 64 << 10

const smallest = 512

// Footprint is what a block of that size takes: rounded up to an eighth of the
// power of two below it, so that blocks which are free fit others.
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

func (w *writer) numbers(list []uint32) {
	w.count(len(list))
	for _, n := range list {
		w.u32(n)
	}
}

func (w *writer) copies(list []Copy) {
	w.count(len(list))
	for _, c := range list {
		w.u32(c.Block)
		w.u64(uint64(c.Offset))
		w.u64(uint64(c.Size))
	}
}

// Append writes a job as a message.
func (j *Job) Append(b []byte) []byte {
	const usual = 512
	begin := len(b)
	w := &writer{append(slices.Grow(b, usual), make([]byte, HeaderSize)...)}
	w.u64(j.ID)
	w.numbers(j.Unload)
	w.count(len(j.Load))
	for _, m := range j.Load {
		w.u32(m.Number)
		w.text(m.PTX + "\x00")
	}
	w.u64(uint64(j.Limit))
	w.copies(j.Save)
	w.numbers(j.Free)
	w.count(len(j.Alloc))
	for _, a := range j.Alloc {
		w.u32(a.Number)
		w.u64(uint64(a.Size))
	}
	w.copies(j.Upload)
	w.count(len(j.Duplicate))
	for _, d := range j.Duplicate {
		w.u32(d.To)
		w.u32(d.From)
	}
	w.numbers(j.Zero)
	w.count(len(j.Kernels))
	w.count(j.Iterations)
	for i := range j.Kernels {
		w.kernel(&j.Kernels[i])
	}
	w.copies(j.Download)
	order.PutUint32(w.b[begin:], uint32(len(w.b)-begin-HeaderSize))
	order.PutUint32(w.b[begin+4:], KindJob)
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

var errShort = errors.New("a message from an executor ends too early")

type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.bad = true
		return make([]byte, min(max(n, 8), 8))
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) u32() uint32  { return order.Uint32(r.take(4)) }
func (r *reader) u64() uint64  { return order.Uint64(r.take(8)) }
func (r *reader) text() string { return string(r.take(int(min(r.u32(), MaxMessage)))) }

func (r *reader) end() error {
	if r.bad || len(r.b) > 0 {
		return errShort
	}
	return nil
}

// Header reads what comes before a message.
func Header(b []byte) (length int, kind uint32, err error) {
	length, kind = int(order.Uint32(b)), order.Uint32(b[4:])
	if length > MaxMessage {
		return 0, 0, fmt.Errorf("an executor sends a message of %d bytes, expected at most %d", length, MaxMessage)
	}
	return length, kind, nil
}

// ParseHello reads a Hello.
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

// ParseOutcome reads what became of a job.
func ParseOutcome(b []byte) (Outcome, error) {
	r := &reader{b: b}
	o := Outcome{ID: r.u64(), Code: r.u32(), Step: Step(r.u32()), Index: r.u32(), Fatal: r.u32() != 0,
		GPU: time.Duration(r.u64()), Held: int64(r.u64()), Text: r.text()}
	return o, r.end()
}
