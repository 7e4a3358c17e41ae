package kgraph

import (
	"encoding/binary"
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

// BuiltinPTX returns the PTX of a built-in module, or "" for an unknown name.
func BuiltinPTX(name string) string {
	if name == Blas {
		return blasPTX()
	}
	return ""
}

var blasPTX = sync.OnceValue(func() string { return elementwisePTX + sgemmPTX() })

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

const elementwisePTX = `// gfaas-sim: vadd op=vadd_f32
// gfaas-sim: saxpy op=saxpy_f32
// gfaas-sim: sgemm op=sgemm_f32
// gfaas-sim: relu op=relu_f32
.version 7.0
.target sm_50
.address_size 64

// c[i] = a[i] + b[i]; each thread takes every gridDim * blockDim-th element.
.visible .entry vadd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
	.reg .pred %p<2>;
	.reg .b32 %r<7>;
	.reg .b64 %rd<8>;
	.reg .f32 %f<4>;
	ld.param.u64 %rd1, [a];
	ld.param.u64 %rd2, [b];
	ld.param.u64 %rd3, [c];
	ld.param.u32 %r1, [n];
	cvta.to.global.u64 %rd1, %rd1;
	cvta.to.global.u64 %rd2, %rd2;
	cvta.to.global.u64 %rd3, %rd3;
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %tid.x;
	mad.lo.u32 %r5, %r2, %r3, %r4;
	mov.u32 %r6, %nctaid.x;
	mul.lo.u32 %r6, %r6, %r3;
NEXT:
	setp.ge.u32 %p1, %r5, %r1;
	@%p1 bra DONE;
	mul.wide.u32 %rd4, %r5, 4;
	add.s64 %rd5, %rd1, %rd4;
	add.s64 %rd6, %rd2, %rd4;
	add.s64 %rd7, %rd3, %rd4;
	ld.global.f32 %f1, [%rd5];
	ld.global.f32 %f2, [%rd6];
	add.rn.f32 %f3, %f1, %f2;
	st.global.f32 [%rd7], %f3;
	add.u32 %r5, %r5, %r6;
	bra NEXT;
DONE:
	ret;
}

// y[i] = s * x[i] + y[i], likewise.
.visible .entry saxpy(.param .f32 s, .param .u64 x, .param .u64 y, .param .u32 n)
{
	.reg .pred %p<2>;
	.reg .b32 %r<7>;
	.reg .b64 %rd<6>;
	.reg .f32 %f<5>;
	ld.param.f32 %f1, [s];
	ld.param.u64 %rd1, [x];
	ld.param.u64 %rd2, [y];
	ld.param.u32 %r1, [n];
	cvta.to.global.u64 %rd1, %rd1;
	cvta.to.global.u64 %rd2, %rd2;
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %tid.x;
	mad.lo.u32 %r5, %r2, %r3, %r4;
	mov.u32 %r6, %nctaid.x;
	mul.lo.u32 %r6, %r6, %r3;
NEXT:
	setp.ge.u32 %p1, %r5, %r1;
	@%p1 bra DONE;
	mul.wide.u32 %rd3, %r5, 4;
	add.s64 %rd4, %rd1, %rd3;
	add.s64 %rd5, %rd2, %rd3;
	ld.global.f32 %f2, [%rd4];
	ld.global.f32 %f3, [%rd5];
	fma.rn.f32 %f4, %f1, %f2, %f3;
	st.global.f32 [%rd5], %f4;
	add.u32 %r5, %r5, %r6;
	bra NEXT;
DONE:
	ret;
}

// y[i] = x[i], or 0 if that is negative, likewise. NaN remains NaN.
.visible .entry relu(.param .u64 x, .param .u64 y, .param .u32 n)
{
	.reg .pred %p<3>;
	.reg .b32 %r<7>;
	.reg .b64 %rd<6>;
	.reg .f32 %f<3>;
	ld.param.u64 %rd1, [x];
	ld.param.u64 %rd2, [y];
	ld.param.u32 %r1, [n];
	cvta.to.global.u64 %rd1, %rd1;
	cvta.to.global.u64 %rd2, %rd2;
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %tid.x;
	mad.lo.u32 %r5, %r2, %r3, %r4;
	mov.u32 %r6, %nctaid.x;
	mul.lo.u32 %r6, %r6, %r3;
	mov.f32 %f2, 0f00000000;
NEXT:
	setp.ge.u32 %p1, %r5, %r1;
	@%p1 bra DONE;
	mul.wide.u32 %rd3, %r5, 4;
	add.s64 %rd4, %rd1, %rd3;
	add.s64 %rd5, %rd2, %rd3;
	ld.global.f32 %f1, [%rd4];
	setp.lt.f32 %p2, %f1, %f2;
	@%p2 mov.f32 %f1, %f2;
	st.global.f32 [%rd5], %f1;
	add.u32 %r5, %r5, %r6;
	bra NEXT;
DONE:
	ret;
}
`
