// Package kgraph parses, checks and encodes the requests of gfaas-kerneld: graphs of GPU kernels
// with their buffers (KaaS, section 4.1.3: "a request object consisting of an execution graph of
// kernels to invoke and buffer specifications"). docs/kernels.md describes the format.
//
// Parse checks the format only. Check finds further problems, as far as the stored objects and the
// device are known. pkg/daemon/kernel executes requests; package lower produces them from the graphs
// of other tools.
package kgraph

import "fmt"

// Limits of a request.
const (
	MaxRequest    = 16 << 20 // length of the JSON in bytes
	MaxKernels    = 1024
	MaxBuffers    = 1024
	MaxModules    = 1024
	MaxIterations = 1_000_000
	MaxLaunches   = 10_000_000 // kernels × iterations
	MaxArgs       = 128        // arguments per kernel
	MaxArg        = 4096       // size in bytes of an argument passed by value
	MaxInline     = 1 << 20    // size in bytes of a buffer sent with the request
	MaxNesting    = 16
	MaxName       = 255 // length in bytes of a key and of the name of a buffer, module or kernel
	maxSize       = 1 << 46
)

// Request is one graph of kernels. Modules and Buffers are in the order of the text; kernels refer to
// them by index.
type Request struct {
	Iterations int
	Modules    []Module
	Buffers    []Buffer
	Kernels    []Kernel
}

// Module is code. Exactly one of PTX, Binary, File, Stored and Builtin is set; Resolve adds PTX or Binary to
// Stored.
type Module struct {
	Name    string
	PTX     string // text
	Binary  string // a cubin or fatbin; use SetBinary
	File    string // path of a file, which the run command reads into PTX or Binary
	Stored  string // name of code that the daemon stores
	Builtin string // "blas"

	images []*Image // of Binary
}

// Source returns the key of the module's code in JSON: ptx, binary, file, stored or builtin.
func (m *Module) Source() string {
	switch {
	case m.Stored != "":
		return "stored"
	case m.Builtin != "":
		return "builtin"
	case m.File != "":
		return "file"
	case m.Binary != "":
		return "binary"
	}
	return "ptx"
}

// Kind is the role of a buffer in its request.
type Kind uint8

// The kinds of buffer.
const (
	Input     Kind = iota // reads an object, or data sent with the request
	Output                // creates an object
	Inout                 // reads and replaces an object
	Temporary             // exists only during the request
)

var kinds = []string{"input", "output", "inout", "temporary"}

func (k Kind) String() string { return kinds[k] }

// Buffer is a range of GPU memory on which kernels work.
type Buffer struct {
	Name     string
	Kind     Kind
	Key      string // of the object, or a reference to a result (see Reference); empty if there is none
	Size     int64  // bytes; 0 if the object determines it
	Data     []byte // contents of an Input that is not an object
	Inline   bool   // Output, Inout: the answer contains the bytes
	Result   bool   // Output: a result of an asynchronous run, which other requests refer to
	Volatile bool   // Output, Inout: the object is kept only on the GPU
}

// Reads reports whether the buffer starts with the contents of an object.
func (b *Buffer) Reads() bool { return b.Key != "" && (b.Kind == Input || b.Kind == Inout) }

// Writes reports whether the buffer becomes an object.
func (b *Buffer) Writes() bool { return b.Key != "" && (b.Kind == Output || b.Kind == Inout) }

// Kernel is one kernel launch.
type Kernel struct {
	Module int // index in Request.Modules
	Name   string
	Grid   [3]int // blocks; zero for a built-in that determines it
	Block  [3]int // threads per block; zero for a built-in that determines it
	Shared int    // bytes of dynamic shared memory
	Args   []Arg  // in the order of the kernel's parameters
}

// Arg is an argument of a kernel: an address in a buffer or a value.
type Arg struct {
	Type   string // buffer, i32, u32, i64, u64, f32, f64 or bytes
	Buffer int    // buffer: index in Request.Buffers
	Offset int64  // buffer: offset in bytes
	Value  []byte // other types: the bytes passed to the kernel
}

// Size returns how many bytes the argument takes in the kernel's parameters.
func (a *Arg) Size() int {
	if a.Type == "buffer" {
		return 8
	}
	return len(a.Value)
}

// Codes of problems, also used in answers.
const (
	BadRequest  = "bad-request"
	Unsupported = "unsupported"
	NotFound    = "not-found"
	TooLarge    = "too-large"
)

// Problem describes one problem of a request.
type Problem struct {
	Code    string // BadRequest, Unsupported, NotFound or TooLarge
	Where   string // JSON pointer, for example /kernels/0/args/2; empty for the whole request
	Message string

	offset int64 // for a JSON syntax error: number of bytes up to and including the first wrong one; otherwise 0
}

func (p *Problem) Error() string {
	if p.Where == "" {
		return p.Message
	}
	return p.Where + ": " + p.Message
}

// maxProblems is the largest number of problems reported.
const maxProblems = 100

// problems collects problems, up to maxProblems.
type problems []*Problem

func (p *problems) add(code, where, format string, args ...any) {
	if len(*p) < maxProblems {
		*p = append(*p, &Problem{Code: code, Where: where, Message: fmt.Sprintf(format, args...)})
	}
}
