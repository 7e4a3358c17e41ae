package kgraph

import (
	"fmt"
	"strings"
)

// Constants of the tiled matrix product. A block computes tileM × tileN elements of C; each of its
// threads computes perThread × perThread of them in registers. The block advances along k in steps of
// tileK. While it multiplies one step's parts of A and B in shared memory, each thread loads its part
// of the next step from global memory into registers. A is stored transposed in shared memory, with
// rows strideA apart. This lets a thread read its parts of a column of A and a row of B as vectors,
// without bank conflicts in a warp.
const (
	tileM, tileN, tileK = 128, 128, 8
	perThread           = 8
	tileThreads         = tileM / perThread * tileN / perThread
	strideA             = tileM + 4
	loadsA              = tileM * tileK / tileThreads // elements per thread and step, consecutive in a row
	loadsB              = tileN * tileK / tileThreads // elements per thread and step, 32 apart: a warp reads a row
)

// ptxWriter writes PTX line by line.
type ptxWriter struct{ strings.Builder }

func (w *ptxWriter) f(format string, args ...any) { fmt.Fprintf(w, "\t"+format+";\n", args...) }
func (w *ptxWriter) label(name string)            { fmt.Fprintf(w, "%s:\n", name) }

// sgemmPTX returns the PTX of sgemm. Registers are named by their contents: %c elements of C, %a and %b
// the current factors, %na and %nb the elements for the next step.
func sgemmPTX() string {
	w := &ptxWriter{}
	fmt.Fprintf(w, `
// C = A * B, row-major. One block for %d x %d elements of C, in rows of blocks.
.visible .entry sgemm(.param .u64 A, .param .u64 B, .param .u64 C, .param .u32 m, .param .u32 n, .param .u32 k)
.reqntid %d, 1, 1
{
	.shared .align 16 .b8 tileA[%d];
	.shared .align 16 .b8 tileB[%d];
	.reg .pred %%p, %%q, %%rowA, %%more, %%colB<%d>, %%colC<%d>;
	.reg .b32 %%m, %%n, %%k, %%t, %%x, %%y, %%i, %%j, %%row0, %%col0, %%row, %%col, %%ka, %%kb, %%step, %%kk;
	.reg .b32 %%storeA, %%storeB, %%readA, %%readB, %%sa, %%sb, %%tr, %%tc;
	.reg .b64 %%A, %%B, %%C, %%w, %%v, %%nextB, %%stepB, %%rowC;
	.reg .f32 %%c<%d>, %%a<%d>, %%b<%d>, %%na<%d>, %%nb<%d>;
`, tileM, tileN, tileThreads, 4*strideA*tileK, 4*tileN*tileK, loadsB, perThread, perThread*perThread, perThread, perThread, loadsA, loadsB)
	for _, name := range []string{"A", "B", "C"} {
		w.f("ld.param.u64 %%%s, [%s]", name, name)
		w.f("cvta.to.global.u64 %%%s, %%%s", name, name)
	}
	for _, name := range []string{"m", "n", "k"} {
		w.f("ld.param.u32 %%%s, [%s]", name, name)
	}
	place(w)
	for i := range perThread * perThread {
		w.f("mov.f32 %%c%d, 0f00000000", i)
	}
	w.f("mov.u32 %%step, 0")
	loadTiles(w)
	w.label("STEP")
	storeTiles(w)
	w.f("bar.sync 0")
	w.f("add.u32 %%step, %%step, %d", tileK)
	w.f("setp.lt.u32 %%more, %%step, %%k")
	w.f("@!%%more bra MULTIPLY")
	w.f("add.u32 %%ka, %%ka, %d", tileK)
	w.f("add.u32 %%kb, %%kb, %d", tileK)
	w.f("add.s64 %%A, %%A, %d", 4*tileK)
	w.f("add.s64 %%B, %%B, %%stepB")
	loadTiles(w)
	w.label("MULTIPLY")
	multiply(w)
	w.f("bar.sync 0")
	w.f("@%%more bra STEP")
	storeC(w)
	w.f("ret")
	w.WriteString("}\n")
	return w.String()
}

// place writes the computation of the block's part of C and of the thread's addresses.
func place(w *ptxWriter) {
	w.f("mov.u32 %%t, %%tid.x")
	w.f("mov.u32 %%x, %%ctaid.x")
	w.f("add.u32 %%y, %%n, %d", tileN-1)
	w.f("div.u32 %%y, %%y, %d", tileN) // number of blocks in a row of blocks
	w.f("div.u32 %%i, %%x, %%y")
	w.f("mul.lo.u32 %%row0, %%i, %d", tileM)
	w.f("mul.lo.u32 %%j, %%i, %%y")
	w.f("sub.u32 %%j, %%x, %%j")
	w.f("mul.lo.u32 %%col0, %%j, %d", tileN)

	// A: two threads load one row, each half of the step's columns.
	w.f("div.u32 %%row, %%t, %d", tileK/loadsA)
	w.f("rem.u32 %%ka, %%t, %d", tileK/loadsA)
	w.f("mul.lo.u32 %%ka, %%ka, %d", loadsA)
	w.f("mad.lo.u32 %%storeA, %%ka, %d, %%row", strideA)
	w.f("shl.b32 %%storeA, %%storeA, 2")
	w.f("mov.u32 %%i, tileA")
	w.f("add.u32 %%storeA, %%storeA, %%i")
	w.f("add.u32 %%row, %%row, %%row0")
	w.f("setp.lt.u32 %%rowA, %%row, %%m")
	w.f("mul.wide.u32 %%w, %%row, %%k")
	w.f("cvt.u64.u32 %%v, %%ka")
	w.f("add.s64 %%w, %%w, %%v")
	w.f("shl.b64 %%w, %%w, 2")
	w.f("add.s64 %%A, %%A, %%w")

	// B: a warp loads one row.
	w.f("div.u32 %%kb, %%t, 32")
	w.f("rem.u32 %%col, %%t, 32")
	w.f("mad.lo.u32 %%storeB, %%kb, %d, %%col", tileN)
	w.f("shl.b32 %%storeB, %%storeB, 2")
	w.f("mov.u32 %%i, tileB")
	w.f("add.u32 %%storeB, %%storeB, %%i")
	w.f("add.u32 %%col, %%col, %%col0")
	for i := range loadsB {
		w.f("add.u32 %%i, %%col, %d", 32*i)
		w.f("setp.lt.u32 %%colB%d, %%i, %%n", i)
	}
	w.f("mul.wide.u32 %%w, %%kb, %%n")
	w.f("cvt.u64.u32 %%v, %%col")
	w.f("add.s64 %%w, %%w, %%v")
	w.f("shl.b64 %%w, %%w, 2")
	w.f("add.s64 %%B, %%B, %%w")
	w.f("mul.wide.u32 %%stepB, %%n, %d", 4*tileK)

	// Elements of C: perThread consecutive rows; of the columns, one half in each half of the
	// tile, so that the reads of B by a warp are consecutive.
	w.f("div.u32 %%tr, %%t, %d", tileN/perThread)
	w.f("rem.u32 %%tc, %%t, %d", tileN/perThread)
	w.f("mov.u32 %%readA, tileA")
	w.f("mad.lo.u32 %%readA, %%tr, %d, %%readA", 4*perThread)
	w.f("mov.u32 %%readB, tileB")
	w.f("mad.lo.u32 %%readB, %%tc, 16, %%readB")
}

// loadTiles writes the loads of a thread's part of the next step into registers. Elements outside of
// the matrices are 0.
func loadTiles(w *ptxWriter) {
	for i := range loadsA {
		w.f("mov.f32 %%na%d, 0f00000000", i)
		w.f("add.u32 %%i, %%ka, %d", i)
		w.f("setp.lt.and.u32 %%p, %%i, %%k, %%rowA")
		w.f("@%%p ld.global.f32 %%na%d, [%%A+%d]", i, 4*i)
	}
	w.f("setp.lt.u32 %%q, %%kb, %%k")
	for i := range loadsB {
		w.f("mov.f32 %%nb%d, 0f00000000", i)
		w.f("and.pred %%p, %%q, %%colB%d", i)
		w.f("@%%p ld.global.f32 %%nb%d, [%%B+%d]", i, 4*32*i)
	}
}

// storeTiles writes the stores of these registers into shared memory.
func storeTiles(w *ptxWriter) {
	for i := range loadsA {
		w.f("st.shared.f32 [%%storeA+%d], %%na%d", 4*strideA*i, i)
	}
	for i := range loadsB {
		w.f("st.shared.f32 [%%storeB+%d], %%nb%d", 4*32*i, i)
	}
}

// multiply writes the products of one step, one column of A and one row of B at a time.
func multiply(w *ptxWriter) {
	vector := func(name string, from int, address string, offset int) {
		w.f("ld.shared.v4.f32 {%%%s%d, %%%s%d, %%%s%d, %%%s%d}, [%%%s+%d]",
			name, from, name, from+1, name, from+2, name, from+3, address, offset)
	}
	for kk := range tileK {
		for i := 0; i < perThread; i += 4 {
			vector("a", i, "readA", 4*(strideA*kk+i))
			vector("b", i, "readB", 4*(tileN*kk+i/4*tileN/2))
		}
		for i := range perThread {
			for j := range perThread {
				c := i*perThread + j
				w.f("fma.rn.f32 %%c%d, %%a%d, %%b%d, %%c%d", c, i, j, c)
			}
		}
	}
}

// storeC writes the stores of a thread's elements that lie within C.
func storeC(w *ptxWriter) {
	w.f("mad.lo.u32 %%row, %%tr, %d, %%row0", perThread)
	w.f("mad.lo.u32 %%col, %%tc, 4, %%col0")
	column := func(j int) int { return j/4*tileN/2 + j%4 }
	for j := range perThread {
		w.f("add.u32 %%i, %%col, %d", column(j))
		w.f("setp.lt.u32 %%colC%d, %%i, %%n", j)
	}
	w.f("mul.wide.u32 %%rowC, %%row, %%n")
	w.f("cvt.u64.u32 %%v, %%col")
	w.f("add.s64 %%rowC, %%rowC, %%v")
	w.f("shl.b64 %%rowC, %%rowC, 2")
	w.f("add.s64 %%rowC, %%rowC, %%C")
	w.f("mul.wide.u32 %%w, %%n, 4")
	for i := range perThread {
		w.f("add.u32 %%i, %%row, %d", i)
		w.f("setp.lt.u32 %%q, %%i, %%m")
		for j := range perThread {
			w.f("and.pred %%p, %%q, %%colC%d", j)
			w.f("@%%p st.global.f32 [%%rowC+%d], %%c%d", 4*column(j), i*perThread+j)
		}
		w.f("add.s64 %%rowC, %%rowC, %%w")
	}
}
