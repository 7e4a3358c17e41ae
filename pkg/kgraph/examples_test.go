package kgraph

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
)

// example returns an interpreter of a kernel of an example.
func example(t *testing.T, file, kernel string, params map[string]uint64) *interpreter {
	t.Helper()
	m := newInterpreter(t, string(readFile(t, "../../examples/kernels/"+file)), kernel)
	for name, v := range params {
		m.params[name] = v
	}
	return m
}

// decode returns the contents of a buffer as values of the type of want.
func decode[T any](t *testing.T, m *interpreter, param string, n int) []T {
	t.Helper()
	out := make([]T, n)
	if _, err := binary.Decode(m.global[m.params[param]>>32], binary.LittleEndian, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// encode returns values as bytes.
func encode[T any](t *testing.T, values []T) []byte {
	t.Helper()
	data, err := binary.Append(nil, binary.LittleEndian, values)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// product returns the product of two matrices, m × k by k × n.
func product[T float32 | float64 | complex64](a, b []T, m, n, k int) []T {
	c := make([]T, m*n)
	for i := range m {
		for j := range n {
			for l := range k {
				c[i*n+j] += a[i*k+l] * b[l*n+j]
			}
		}
	}
	return c
}

// The PTX of the examples computes the results that the comments promise. All values are whole numbers, so that results
// are exact, or almost exact for large ones. The last block of each launch has threads without an element.
func TestExampleGEMM(t *testing.T) {
	const m, n, k = 5, 7, 4
	sizes := map[string]uint64{"m": m, "n": n, "k": k}
	doubles := func(count, period int) (out []float64) {
		for _, v := range pattern(count, period) {
			out = append(out, float64(v)+1<<30) // more than a 32-bit float can hold
		}
		return out
	}
	a, b := doubles(m*k, 7), doubles(k*n, 5)
	d := example(t, "dgemm.ptx", "dgemm", sizes)
	d.data("A", encode(t, a))
	d.data("B", encode(t, b))
	d.data("C", make([]byte, 8*m*n))
	d.launch(3, 16)
	if got, want := decode[float64](t, d, "C", m*n), product(a, b, m, n, k); !close64(got, want) {
		t.Errorf("dgemm: got %v, want %v", got, want)
	}
	numbers := func(count, period int) (out []complex64) {
		re, im := pattern(count, period), pattern(count, period+4)
		for i := range re {
			out = append(out, complex(re[i], im[i]))
		}
		return out
	}
	x, y := numbers(m*k, 7), numbers(k*n, 5)
	c := example(t, "cgemm.ptx", "cgemm", sizes)
	c.data("A", encode(t, x))
	c.data("B", encode(t, y))
	c.data("C", make([]byte, 8*m*n))
	c.launch(3, 16)
	if got, want := decode[complex64](t, c, "C", m*n), product(x, y, m, n, k); !slices.Equal(got, want) {
		t.Errorf("cgemm: got %v, want %v", got, want)
	}
}

// close64 reports whether values differ by the rounding of a 64-bit float at most.
func close64(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(a, b float64) bool { return math.Abs(a-b) <= 1e-14*math.Abs(b) })
}

func TestExampleJacobi(t *testing.T) {
	const n = 6
	a, b, x := pattern(n*n, 5), pattern(n, 3), pattern(n, 4)
	for i := range n {
		a[i*n+i] = 8 // a power of two
	}
	m := example(t, "jacobi.ptx", "jacobi", map[string]uint64{"n": n})
	m.buffer("A", a)
	m.buffer("b", b)
	m.buffer("x", x)
	m.buffer("y", make([]float32, n))
	m.launch(2, 4)
	for i, got := range m.floats("y") {
		want := b[i]
		for j := range n {
			if j != i {
				want -= a[i*n+j] * x[j]
			}
		}
		if want /= 8; got != want {
			t.Errorf("element %d: got %v, want %v", i, got, want)
		}
	}
}

func TestExampleNearest(t *testing.T) {
	const q, n, d = 3, 11, 2
	queries, points := pattern(q*d, 5), pattern(n*d, 7) // some points are equal
	m := example(t, "nearest.ptx", "distances", map[string]uint64{"q": q, "n": n, "d": d})
	m.buffer("queries", queries)
	m.buffer("points", points)
	m.buffer("D", make([]float32, q*n))
	m.launch(3, 16)
	found := example(t, "nearest.ptx", "nearest", map[string]uint64{"q": q, "n": n})
	found.buffer("D", m.floats("D"))
	found.data("index", make([]byte, 4*q))
	found.launch(1, 8)
	for i, got := range decode[uint32](t, found, "index", q) {
		want, least := uint32(0), float32(math.Inf(1))
		for j := range n {
			var sum float32
			for l := range d {
				apart := queries[i*d+l] - points[j*d+l]
				sum += apart * apart
			}
			if distance := m.floats("D")[i*n+j]; distance != sum {
				t.Errorf("distance between query %d and point %d: got %v, want %v", i, j, distance, sum)
			}
			if sum < least {
				want, least = uint32(j), sum
			}
		}
		if got != want {
			t.Errorf("nearest point of query %d: got %d, want %d", i, got, want)
		}
	}
}
