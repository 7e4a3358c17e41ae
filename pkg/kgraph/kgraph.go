// Package kgraph reads, checks and writes requests of gfaas-kerneld: graphs of
// GPU kernels with the buffers they work on (KaaS, section 4.1.3: "a request
// object consisting of an execution graph of kernels to invoke and buffer
// specifications"). docs/kernels.md describes the form.
//
// Parse reads the form alone; Check finds what is wrong beyond it, with as much
// as is known of the stored objects and of the device.
package kgraph

import "fmt"

// Limits of a request.
const (
	MaxRequest    = 16 << 20 // bytes of JSON
	MaxKernels    = 1024
	MaxBuffers    = 1024
	MaxModules    = 1024
	MaxIterations = 1_000_000
	MaxLaunches   = 10_000_000 // kernels × iterations
	MaxArgs       = 128        // of a kernel
	MaxArg        = 4096       // bytes of one that is given by value
	MaxInline     = 1 << 20    // bytes of a buffer that the request carries
	MaxNesting    = 16
	MaxName       = 255 // bytes of a key, and of the name of a buffer, module or kernel
	maxSize       = 1 << 46
)

// Request is one graph of kernels. Modules and buffers are in the order in which
// they are written; kernels name them by their places.
type Request struct {
	Iterations int
	Modules    []Module
	Buffers    []Buffer
	Kernels    []Kernel
}

// Module is code: exactly one of PTX, File and Builtin is set.
type Module struct {
	Name    string
	PTX     string // text
	File    string // whose text is to become PTX: the run command reads it
	Builtin string // "blas"
}

// Kind says what a buffer is to its request.
type Kind uint8

// The kinds of buffer.
const (
	Input     Kind = iota // an object that is read
	Output                // a new object
	Inout                 // an object that is replaced
	Temporary             // ends with the request
)

var kinds = []string{"input", "output", "inout", "temporary"}

func (k Kind) String() string { return kinds[k] }

// Buffer is memory of the GPU that kernels work on.
type Buffer struct {
	Name     string
	Kind     Kind
	Key      string // of the object; empty for what is none
	Size     int64  // bytes; 0 where the object says
	Data     []byte // what an input is, instead of an object
	Inline   bool   // Output, Inout: the answer carries its bytes
	Volatile bool   // Output, Inout: kept on the GPU alone
}

// Reads says whether the buffer begins as an object.
func (b *Buffer) Reads() bool { return b.Key != "" && (b.Kind == Input || b.Kind == Inout) }

// Writes says whether an object comes of the buffer.
func (b *Buffer) Writes() bool { return b.Key != "" && (b.Kind == Output || b.Kind == Inout) }

// Kernel is one launch.
type Kernel struct {
	Module int // place in Modules
	Name   string
	Grid   [3]int // blocks; zero where a built-in says
	Block  [3]int // threads of a block; zero where a built-in says
	Shared int    // bytes of dynamic shared memory
	Args   []Arg  // in the kernel's own order
}

// Arg is an argument of a kernel: an address or a value.
type Arg struct {
	Type   string // buffer, i32, u32, i64, u64, f32, f64 or bytes
	Buffer int    // buffer: place in Buffers
	Offset int64  // buffer: bytes from its beginning
	Value  []byte // others: as the kernel gets it
}

// Size is how many bytes the kernel gets.
func (a *Arg) Size() int {
	if a.Type == "buffer" {
		return 8
	}
	return len(a.Value)
}

// Codes of problems, as they are in answers.
const (
	BadRequest  = "bad-request"
	Unsupported = "unsupported"
	NotFound    = "not-found"
	TooLarge    = "too-large"
)

// Problem is one thing that is wrong with a request.
type Problem struct {
	Code    string // one of those above
	Where   string // a JSON pointer, like /kernels/0/args/2; empty for the whole
	Message string

	offset int64 // bytes up to where the text is no JSON, the first wrong one included; 0: it is JSON
}

func (p *Problem) Error() string {
	if p.Where == "" {
		return p.Message
	}
	return p.Where + ": " + p.Message
}

// maxProblems is after how many it is enough.
const maxProblems = 100

// problems are those found so far.
type problems []*Problem

func (p *problems) add(code, where, format string, args ...any) {
	if len(*p) < maxProblems {
		*p = append(*p, &Problem{Code: code, Where: where, Message: fmt.Sprintf(format, args...)})
	}
}
