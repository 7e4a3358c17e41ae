package kgraph

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"sync"
)

// Blas is the name of the module of built-in kernels. Their buffers contain 32-bit floats; sizes are
// 32-bit integers:
//
//	vadd(a, b, c, n)         c = a + b, n elements each
//	saxpy(a, x, y, n)        y = a·x + y, a by value
//	relu(x, y, n)            y = max(x, 0)
//	sgemm(A, B, C, m, n, k)  C = A·B, row-major: m × n is m × k by k × n
const Blas = "blas"

// builtin describes a built-in kernel.
type builtin struct {
	entry Entry
	// shape returns the default grid and block for the given sizes.
	shape func(n []int64) (grid, block [3]int)
	// fits reports whether the kernel can run with its own grid and block; the other two are
	// the defaults.
	fits func(k *Kernel, grid, block [3]int) bool
	// floats returns how many floats each argument refers to; 0 if it is not a buffer.
	floats func(n []int64) []int64
	names  []string // of the arguments
	first  int      // index of the first size; all later arguments are sizes, too
	output int      // index of the argument that the kernel writes
}

var (
	pointer = Param{Size: 8, Pointer: true}
	number  = Param{Size: 4}
)

var builtins = map[string]*builtin{
	"vadd": {
		entry: Entry{Params: []Param{pointer, pointer, pointer, number}},
		shape: linear, fits: oneDimensional,
		floats: func(n []int64) []int64 { return []int64{n[0], n[0], n[0], 0} },
		names:  []string{"a", "b", "c", "n"}, first: 3, output: 2,
	},
	"saxpy": {
		entry: Entry{Params: []Param{number, pointer, pointer, number}},
		shape: linear, fits: oneDimensional,
		floats: func(n []int64) []int64 { return []int64{0, n[0], n[0], 0} },
		names:  []string{"a", "x", "y", "n"}, first: 3, output: 2,
	},
	"relu": {
		entry: Entry{Params: []Param{pointer, pointer, number}},
		shape: linear, fits: oneDimensional,
		floats: func(n []int64) []int64 { return []int64{n[0], n[0], 0} },
		names:  []string{"x", "y", "n"}, first: 2, output: 1,
	},
	"sgemm": {
		entry: Entry{Params: []Param{pointer, pointer, pointer, number, number, number}},
		shape: func(n []int64) (grid, block [3]int) {
			tiles := ((n[0] + tileM - 1) / tileM) * ((n[1] + tileN - 1) / tileN)
			return [3]int{int(tiles), 1, 1}, [3]int{tileThreads, 1, 1}
		},
		fits: func(k *Kernel, grid, block [3]int) bool { return k.Grid == grid && k.Block == block },
		floats: func(n []int64) []int64 {
			return []int64{n[0] * n[2], n[2] * n[1], n[0] * n[1], 0, 0, 0}
		},
		names: []string{"A", "B", "C", "m", "n", "k"}, first: 3, output: 2,
	},
}

// linear returns a shape with one thread per element, up to a number of blocks that fills any GPU. The
// kernels loop over the remaining elements.
func linear(n []int64) (grid, block [3]int) {
	const threads, maxBlocks = 256, 65535
	return [3]int{int(min((n[0]+threads-1)/threads, maxBlocks)), 1, 1}, [3]int{threads, 1, 1}
}

func oneDimensional(k *Kernel, _, _ [3]int) bool {
	return k.Grid[1] == 1 && k.Grid[2] == 1 && k.Block[1] == 1 && k.Block[2] == 1
}

// blasPTX returns the PTX of the built-in kernels.
var blasPTX = sync.OnceValue(func() string { return blasHeader + elementwisePTX() + sgemmPTX() })

// builtin checks a launch of a built-in kernel and fills in its grid and block. It returns the kernel's
// declaration, or nil if there is a problem.
func (c *checker) builtin(k *Kernel, where string) *Entry {
	b := builtins[k.Name]
	if b == nil {
		c.problems.add(BadRequest, where+"/name", "%s has no kernel %q, expected relu, vadd, saxpy or sgemm", Blas, k.Name)
		return nil
	}
	found := len(c.problems)
	c.args(k, &b.entry, where)
	if len(c.problems) > found {
		return nil
	}
	sizes := make([]int64, 0, 3)
	for j := b.first; j < len(k.Args); j++ {
		n := int64(int32(binary.LittleEndian.Uint32(k.Args[j].Value)))
		if n < 1 || k.Args[j].Type == "f32" || k.Args[j].Type == "bytes" {
			c.problems.add(BadRequest, where+"/args/"+strconv.Itoa(j), "%s of %s is %s, expected an i32 of 1 or more", b.names[j], k.Name, spoken(&k.Args[j], n))
			return nil
		}
		sizes = append(sizes, n)
	}
	c.reach(k, b, sizes, where)
	grid, block := b.shape(sizes)
	switch {
	case k.Grid[0] == 0:
		k.Grid, k.Block = grid, block
	case !b.fits(k, grid, block):
		c.problems.add(BadRequest, where+"/grid", "%v blocks of %v, expected %v of %v, or no grid and block at all", k.Grid, k.Block, grid, block)
	}
	if len(c.problems) > found {
		return nil
	}
	return &b.entry
}

func spoken(a *Arg, n int64) string {
	if a.Type == "i32" {
		return strconv.FormatInt(n, 10)
	}
	return "of the type " + a.Type
}

// reach checks that each buffer is large enough for the sizes, and that the kernel does not write an
// input.
func (c *checker) reach(k *Kernel, b *builtin, sizes []int64, where string) {
	for j, floats := range b.floats(sizes) {
		if floats == 0 {
			continue
		}
		a := &k.Args[j]
		at := where + "/args/" + strconv.Itoa(j)
		if a.Type != "buffer" {
			c.problems.add(BadRequest, at, "%s of %s has the type %s, expected a buffer", b.names[j], k.Name, a.Type)
			continue
		}
		buf := &c.r.Buffers[a.Buffer]
		need := 4 * floats // up to 2³¹ × 2³¹ × 4 = 2⁶⁴, which overflows an int64
		switch {
		case floats > maxSize || buf.Size > 0 && need > buf.Size-a.Offset:
			c.problems.add(BadRequest, at, "%s of %s needs %d floats from byte %d, but the buffer %q has %d bytes", b.names[j], k.Name, floats, a.Offset, buf.Name, buf.Size)
		case a.Offset%4 != 0:
			c.problems.add(BadRequest, at+"/offset", "%d, expected a multiple of 4", a.Offset)
		case j == b.output && buf.Kind == Input:
			c.problems.add(BadRequest, at, "%s writes %s, but the buffer %q is an input", k.Name, b.names[j], buf.Name)
		case j == b.output && k.Name == "sgemm" && slices.ContainsFunc(k.Args[:b.output], func(o Arg) bool { return overlaps(&o, a, need) }):
			c.problems.add(BadRequest, at, "sgemm writes C while it reads A and B, expected another buffer")
		}
	}
}

// overlaps reports whether the range that an argument reads may overlap the range that a kernel writes.
// It assumes that the argument reads to the end of the buffer, so it also rejects some disjoint ranges.
func overlaps(read, written *Arg, bytes int64) bool {
	return read.Type == "buffer" && read.Buffer == written.Buffer && read.Offset < written.Offset+bytes
}

// blasHeader precedes the kernels. Its comments name the operations of the simulated driver.
const blasHeader = `// gfaas-sim: vadd op=vadd_f32
// gfaas-sim: saxpy op=saxpy_f32
// gfaas-sim: sgemm op=sgemm_f32
// gfaas-sim: relu op=relu_f32
.version 7.0
.target sm_50
.address_size 64
`

// elementwisePTX returns the PTX of vadd, saxpy and relu.
func elementwisePTX() string {
	w := &ptxWriter{}
	w.elementwise("vadd", "", []string{"a", "b", "c"},
		"ld.global.f32 %f, [%a]", "ld.global.f32 %g, [%b]", "add.rn.f32 %f, %f, %g", "st.global.f32 [%c], %f")
	w.elementwise("saxpy", "s", []string{"x", "y"},
		"ld.global.f32 %f, [%x]", "ld.global.f32 %g, [%y]", "fma.rn.f32 %f, %s, %f, %g", "st.global.f32 [%y], %f")
	// NaN remains NaN.
	w.elementwise("relu", "", []string{"x", "y"},
		"ld.global.f32 %f, [%x]", "setp.lt.f32 %q, %f, 0f00000000", "@%q mov.f32 %f, 0f00000000", "st.global.f32 [%y], %f")
	return w.String()
}

// elementwise writes a kernel that computes n elements; each thread takes every gridDim × blockDim-th one.
// Its parameters are a float, unless the name of the scalar is empty, the buffers, and n. The lines of compute
// find the scalar, and the address of the element in each buffer, in registers of these names.
func (w *ptxWriter) elementwise(name, scalar string, buffers []string, compute ...string) {
	params := ""
	if scalar != "" {
		params = ".param .f32 " + scalar + ", "
	}
	for _, buffer := range buffers {
		params += ".param .u64 " + buffer + ", "
	}
	fmt.Fprintf(w, "\n.visible .entry %s(%s.param .u32 n)\n{\n", name, params)
	w.f(".reg .pred %%p, %%q")
	w.f(".reg .b32 %%n, %%i, %%step, %%t")
	w.f(".reg .b64 %%offset")
	w.f(".reg .f32 %%f, %%g")
	if scalar != "" {
		w.f(".reg .f32 %%%s", scalar)
		w.f("ld.param.f32 %%%s, [%s]", scalar, scalar)
	}
	for _, buffer := range buffers {
		w.f(".reg .b64 %%%s, %%%s0", buffer, buffer)
		w.f("ld.param.u64 %%%s0, [%s]", buffer, buffer)
		w.f("cvta.to.global.u64 %%%s0, %%%s0", buffer, buffer)
	}
	w.f("ld.param.u32 %%n, [n]")
	w.f("mov.u32 %%i, %%ctaid.x")
	w.f("mov.u32 %%step, %%ntid.x")
	w.f("mov.u32 %%t, %%tid.x")
	w.f("mad.lo.u32 %%i, %%i, %%step, %%t")
	w.f("mov.u32 %%t, %%nctaid.x")
	w.f("mul.lo.u32 %%step, %%step, %%t")
	w.label("NEXT")
	w.f("setp.ge.u32 %%p, %%i, %%n")
	w.f("@%%p bra DONE")
	w.f("mul.wide.u32 %%offset, %%i, 4")
	for _, buffer := range buffers {
		w.f("add.s64 %%%s, %%%s0, %%offset", buffer, buffer)
	}
	for _, line := range compute {
		w.f("%s", line)
	}
	w.f("add.u32 %%i, %%i, %%step")
	w.f("bra NEXT")
	w.label("DONE")
	w.f("ret")
	w.WriteString("}\n")
}
