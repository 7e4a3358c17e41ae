package kgraph

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// interpreter interprets the part of PTX that the built-ins and the examples use, thread by thread from one barrier to
// the next. It verifies without a GPU that they compute correct results and access no other memory.
type interpreter struct {
	t      *testing.T
	lines  [][]string // opcode and operands, after the guard
	guards []string
	labels map[string]int
	shared map[string]uint64 // offsets of variables
	bytes  []byte            // shared memory
	params map[string]uint64
	global map[uint64][]byte // by start address; the addresses are 1<<32 apart
}

type thread struct {
	at                  int
	exited              bool
	regs                map[string]uint64
	tid, cta, ntid, dim uint64
}

func newInterpreter(t *testing.T, text, entry string) *interpreter {
	m := &interpreter{t: t, labels: map[string]int{}, shared: map[string]uint64{}, params: map[string]uint64{}, global: map[uint64][]byte{}}
	_, body, found := strings.Cut(text, ".entry "+entry+"(")
	if !found {
		t.Fatalf("the PTX text has no entry %s", entry)
	}
	_, body, _ = strings.Cut(body, "{\n")
	body, _, _ = strings.Cut(body, "\n}")
	size := uint64(0)
	for line := range strings.Lines(body) {
		line, _, _ = strings.Cut(line, "//")
		line = strings.TrimSuffix(strings.TrimSpace(line), ";")
		switch {
		case line == "" || strings.HasPrefix(line, ".reg"):
			continue
		case strings.HasPrefix(line, ".shared"):
			name, rest, _ := strings.Cut(line[strings.LastIndex(line, " ")+1:], "[")
			n, err := strconv.Atoi(strings.TrimSuffix(rest, "]"))
			if err != nil {
				t.Fatal(err)
			}
			m.shared[name] = size
			size += uint64(n+15) / 16 * 16
			continue
		case strings.HasSuffix(line, ":"):
			m.labels[strings.TrimSuffix(line, ":")] = len(m.lines)
			continue
		}
		guard := ""
		if line[0] == '@' {
			guard, line, _ = strings.Cut(line[1:], " ")
		}
		op, rest, _ := strings.Cut(line, " ")
		var fields []string
		for _, f := range strings.Split(rest, ",") {
			fields = append(fields, strings.Trim(strings.TrimSpace(f), "{}"))
		}
		m.lines, m.guards = append(m.lines, append([]string{op}, fields...)), append(m.guards, guard)
	}
	m.bytes = make([]byte, size)
	return m
}

// value returns the value of an operand: a register, a special register, a variable or a number.
func (m *interpreter) value(th *thread, s string) uint64 {
	switch s {
	case "%tid.x":
		return th.tid
	case "%ctaid.x":
		return th.cta
	case "%ntid.x":
		return th.ntid
	case "%nctaid.x":
		return th.dim
	}
	if s[0] == '%' {
		return th.regs[s]
	}
	if at, is := m.shared[s]; is {
		return at
	}
	if hex, is := strings.CutPrefix(s, "0f"); is {
		v, err := strconv.ParseUint(hex, 16, 32)
		if err != nil {
			m.t.Fatal(err)
		}
		return v
	}
	if hex, is := strings.CutPrefix(s, "0d"); is {
		v, err := strconv.ParseUint(hex, 16, 64)
		if err != nil {
			m.t.Fatal(err)
		}
		return v
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		m.t.Fatalf("operand %s: %v", s, err)
	}
	return uint64(v)
}

// place returns the memory at [register+offset].
func (m *interpreter) place(th *thread, s string, shared bool, size int) []byte {
	name, offset, _ := strings.Cut(strings.Trim(s, "[]"), "+")
	at := m.value(th, name)
	if offset != "" {
		at += m.value(th, offset)
	}
	from, base := m.bytes, at
	if shared {
		if at%uint64(size) != 0 {
			m.t.Fatalf("thread %d of block %d: shared address %d is not aligned to %d", th.tid, th.cta, at, size)
		}
	} else {
		from, base = m.global[at>>32], at&math.MaxUint32
	}
	if base+uint64(size) > uint64(len(from)) || base%min(uint64(size), 8) != 0 {
		m.t.Fatalf("thread %d of block %d: access of %d bytes at %#x, want an aligned one within the %d bytes of a buffer", th.tid, th.cta, size, at, len(from))
	}
	return from[base : base+uint64(size)]
}

// run runs a thread to its next barrier or its end.
func (m *interpreter) run(th *thread) {
	f32 := func(s string) float32 { return math.Float32frombits(uint32(m.value(th, s))) }
	for ; th.at < len(m.lines); th.at++ {
		if g := m.guards[th.at]; g != "" && (th.regs[strings.TrimPrefix(g, "!")] != 0) == strings.HasPrefix(g, "!") {
			continue
		}
		l := m.lines[th.at]
		v := func(i int) uint64 { return m.value(th, l[i]) }
		u := func(i int) uint32 { return uint32(v(i)) }
		var out uint64
		switch op := l[0]; op {
		case "ld.param.u64", "ld.param.u32", "ld.param.f32":
			out = m.params[strings.Trim(l[2], "[]")]
		case "cvta.to.global.u64", "cvt.u64.u32", "mov.u32", "mov.f32", "mov.f64":
			out = v(2)
		case "add.u32":
			out = uint64(u(2) + u(3))
		case "sub.u32":
			out = uint64(u(2) - u(3))
		case "add.s64":
			out = v(2) + v(3)
		case "mul.lo.u32":
			out = uint64(u(2) * u(3))
		case "mul.lo.u64":
			out = v(2) * v(3)
		case "mad.lo.u32":
			out = uint64(u(2)*u(3) + u(4))
		case "mul.wide.u32":
			out = uint64(u(2)) * uint64(u(3))
		case "div.u32":
			out = uint64(u(2) / u(3))
		case "rem.u32":
			out = uint64(u(2) % u(3))
		case "shl.b32":
			out = uint64(u(2) << u(3))
		case "shl.b64":
			out = v(2) << v(3)
		case "setp.lt.u32":
			out = truth(u(2) < u(3))
		case "setp.ge.u32":
			out = truth(u(2) >= u(3))
		case "setp.eq.u32":
			out = truth(u(2) == u(3))
		case "setp.ge.f32":
			out = truth(f32(l[2]) >= f32(l[3]))
		case "setp.lt.f32":
			out = truth(f32(l[2]) < f32(l[3]))
		case "setp.lt.and.u32":
			out = truth(u(2) < u(3) && v(4) != 0)
		case "and.pred":
			out = v(2) & v(3)
		case "add.rn.f32":
			out = uint64(math.Float32bits(f32(l[2]) + f32(l[3])))
		case "sub.rn.f32":
			out = uint64(math.Float32bits(f32(l[2]) - f32(l[3])))
		case "div.rn.f32":
			out = uint64(math.Float32bits(f32(l[2]) / f32(l[3])))
		case "neg.f32":
			out = uint64(math.Float32bits(-f32(l[2])))
		case "fma.rn.f64":
			out = math.Float64bits(math.FMA(math.Float64frombits(v(2)), math.Float64frombits(v(3)), math.Float64frombits(v(4))))
		case "fma.rn.f32":
			out = uint64(math.Float32bits(float32(math.FMA(float64(f32(l[2])), float64(f32(l[3])), float64(f32(l[4]))))))
		case "ld.global.f64":
			out = binary.LittleEndian.Uint64(m.place(th, l[2], false, 8))
		case "st.global.f64":
			binary.LittleEndian.PutUint64(m.place(th, l[1], false, 8), v(2))
			continue
		case "ld.global.f32", "ld.shared.f32":
			out = uint64(binary.LittleEndian.Uint32(m.place(th, l[2], op == "ld.shared.f32", 4)))
		case "st.global.f32", "st.global.u32", "st.shared.f32":
			binary.LittleEndian.PutUint32(m.place(th, l[1], op == "st.shared.f32", 4), u(2))
			continue
		case "ld.shared.v4.f32":
			data := m.place(th, l[5], true, 16)
			for i := range 4 {
				th.regs[l[1+i]] = uint64(binary.LittleEndian.Uint32(data[4*i:]))
			}
			continue
		case "bra":
			th.at = m.labels[l[1]] - 1
			continue
		case "bar.sync":
			th.at++
			return
		case "ret":
			th.exited = true
			return
		default:
			m.t.Fatalf("the interpreter does not implement the instruction %s", op)
		}
		th.regs[l[1]] = out
	}
	m.t.Fatal("a thread runs beyond the end of the kernel, want an exit or a barrier before it")
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// launch runs a grid, block after block.
func (m *interpreter) launch(grid, block int) {
	for cta := range grid {
		for i := range m.bytes {
			m.bytes[i] = 0xff // NaN, to detect the use of uninitialized memory
		}
		threads := make([]*thread, block)
		for i := range threads {
			threads[i] = &thread{regs: map[string]uint64{}, tid: uint64(i), cta: uint64(cta), ntid: uint64(block), dim: uint64(grid)}
		}
		for over := 0; over < block; {
			over = 0
			for _, th := range threads {
				if !th.exited {
					m.run(th)
				}
				over += int(truth(th.exited))
			}
		}
	}
}

// buffer passes an array of exactly these floats to the kernel.
func (m *interpreter) buffer(param string, values []float32) uint64 {
	data, _ := binary.Append(nil, binary.LittleEndian, values)
	return m.data(param, data)
}

// data passes exactly these bytes to the kernel.
func (m *interpreter) data(param string, data []byte) uint64 {
	at := uint64(len(m.global)+1) << 32
	m.global[at>>32], m.params[param] = data, at
	return at
}

func (m *interpreter) floats(param string) (out []float32) {
	data := m.global[m.params[param]>>32]
	for i := 0; i < len(data); i += 4 {
		out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(data[i:])))
	}
	return out
}

func pattern(n, period int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(i%period - period/2)
	}
	return out
}

func TestBuiltins(t *testing.T) {
	if at := strings.IndexFunc(blasPTX(), func(r rune) bool { return r > unicode.MaxASCII }); at >= 0 {
		t.Errorf("byte %d of the built-in PTX is not ASCII, want ASCII only, because ptxas refuses others even in comments", at)
	}
	const n = 100
	m := newInterpreter(t, blasPTX(), "vadd")
	m.buffer("a", pattern(n, 7))
	m.buffer("b", pattern(n, 5))
	m.buffer("c", make([]float32, n))
	m.params["n"] = n
	m.launch(2, 32) // fewer threads than elements
	for i, got := range m.floats("c") {
		if want := pattern(n, 7)[i] + pattern(n, 5)[i]; got != want {
			t.Fatalf("vadd: element %d is %v, want %v", i, got, want)
		}
	}
	m = newInterpreter(t, blasPTX(), "saxpy")
	m.buffer("x", pattern(n, 7))
	m.buffer("y", pattern(n, 5))
	m.params["n"], m.params["s"] = n, uint64(math.Float32bits(-2.5))
	m.launch(1, 64)
	for i, got := range m.floats("y") {
		if want := -2.5*pattern(n, 7)[i] + pattern(n, 5)[i]; got != want {
			t.Fatalf("saxpy: element %d is %v, want %v", i, got, want)
		}
	}
	m = newInterpreter(t, blasPTX(), "relu")
	x := pattern(n, 7)
	x[3] = float32(math.NaN())
	m.buffer("x", x)
	m.buffer("y", make([]float32, n))
	m.params["n"] = n
	m.launch(1, 64)
	for i, got := range m.floats("y") {
		if want := max(x[i], 0); got != want && !(i == 3 && got != got) {
			t.Fatalf("relu: element %d is %v, want %v", i, got, want)
		}
	}
	for _, s := range [][3]int{{1, 1, 1}, {128, 128, 8}, {130, 140, 19}, {5, 300, 3}} {
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			rows, cols, inner := s[0], s[1], s[2]
			m := newInterpreter(t, blasPTX(), "sgemm")
			a, b := pattern(rows*inner, 7), pattern(inner*cols, 5)
			m.buffer("A", a)
			m.buffer("B", b)
			m.buffer("C", make([]float32, rows*cols))
			m.params["m"], m.params["n"], m.params["k"] = uint64(rows), uint64(cols), uint64(inner)
			grid, block := builtins["sgemm"].shape([]int64{int64(rows), int64(cols), int64(inner)})
			m.launch(grid[0], block[0])
			for i, got := range m.floats("C") {
				var want float32
				for l := range inner {
					want += a[i/cols*inner+l] * b[l*cols+i%cols]
				}
				if got != want {
					t.Fatalf("element %d is %v, want %v", i, got, want)
				}
			}
		})
	}
}
