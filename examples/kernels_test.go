package examples_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// kernelDaemon starts gfaas-kerneld on a simulated GPU, with further flags. It returns a function that makes a command for the daemon.
func kernelDaemon(t *testing.T, flags ...string) func(name string, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := os.MkdirTemp("", "kern") // sockets' paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	env := append(os.Environ(), "GFAAS_RUN_DIR="+filepath.Join(dir, "run"), "GFAAS_SIM_DIR="+filepath.Join(dir, "sim"), "GFAAS_LIB_DIR="+built(t, "lib"),
		"XDG_CONFIG_HOME="+dir, "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+built(t, "lib", "python"))
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		cmd.Env, cmd.Dir = env, dir
		return cmd
	}
	var said bytes.Buffer
	daemon := command(built(t, "bin", "gfaas-kerneld"), append(flags, "--gpu", "sim", "--gpu-mem", "64MiB", "--host-mem", "64MiB")...)
	daemon.Stderr = &said
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Signal(os.Interrupt)
		if err := daemon.Wait(); err != nil || t.Failed() {
			t.Errorf("gfaas-kerneld: %v\n%s", err, said.String())
		}
	})
	for end := time.Now().Add(time.Minute); command(built(t, "bin", "gfaas-kerneld"), "ls").Run() != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("gfaas-kerneld does not answer")
		}
	}
	return command
}

// TestKernelClient checks the Python client over the daemon's socket and over TCP, and runs the example that uses it.
func TestKernelClient(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", reserve(t))
	command := kernelDaemon(t, "--listen", address)
	script, err := filepath.Abs("testdata/kernel_client.py")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := command("python3", script, address, built(t, "examples", "kernels")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	out, err := command("python3", filepath.Join(built(t, "examples", "kernels"), "run.py")).CombinedOutput()
	lines := regexp.MustCompile(`(?m)^(\w+) +run [0-9.]+ ms, total [0-9.]+ ms, largest difference (\S+)$`).FindAllStringSubmatch(string(out), -1)
	if err != nil || len(lines) != 5 {
		t.Fatalf("run.py: %v, want five results:\n%s", err, out)
	}
	for _, line := range lines {
		if difference, err := strconv.ParseFloat(line[2], 64); err != nil || difference > 1e-4 {
			t.Errorf("run.py: the results of %s differ by %s, want at most 1e-4", line[1], line[2])
		}
	}
}

// random returns n values between -1 and 1.
func random(r *rand.Rand, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = 2*r.Float64() - 1
	}
	return out
}

// narrow returns values as 32-bit floats.
func narrow(values []float64) []float32 {
	out := make([]float32, len(values))
	for i, v := range values {
		out[i] = float32(v)
	}
	return out
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

// TestKernelGraphs runs the kernel graphs of examples/kernels on the simulated GPU, and compares the results with those
// of the same computation in Go. pkg/kgraph tests the code of the kernels.
func TestKernelGraphs(t *testing.T) {
	command := kernelDaemon(t)
	// run runs a graph with the given inputs, and decodes an output.
	run := func(name string, inputs map[string]any, output string, to any) {
		t.Helper()
		args := []string{"run", filepath.Join(built(t, "examples", "kernels"), name+".json"), "--out", name + "/" + output + "=-"}
		for key, values := range inputs {
			data, err := binary.Append(nil, binary.LittleEndian, values)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), key)
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--in", name+"/"+key+"="+file)
		}
		text, err := command(built(t, "bin", "gfaas-kerneld"), args...).Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := binary.Decode(text, binary.LittleEndian, to); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	differ := func(name string, i int, got, want any) { t.Errorf("%s: element %d is %v, want %v", name, i, got, want) }

	const m, n, k = 48, 40, 32
	a, b := random(r, m*k), random(r, k*n)
	double := make([]float64, m*n)
	run("dgemm", map[string]any{"A": a, "B": b}, "C", double)
	for i, want := range product(a, b, m, n, k) {
		if math.Abs(double[i]-want) > 1e-14*k {
			differ("dgemm", i, double[i], want)
		}
	}
	single := make([]float32, m*n)
	run("sgemm", map[string]any{"A": narrow(a), "B": narrow(b)}, "C", single)
	for i, want := range product(narrow(a), narrow(b), m, n, k) {
		if math.Abs(float64(single[i]-want)) > 1e-6*k {
			differ("sgemm", i, single[i], want)
		}
	}
	numbers := func(n int) []complex64 {
		out := make([]complex64, n)
		for i := range out {
			out[i] = complex(float32(r.Float64()), float32(r.Float64()))
		}
		return out
	}
	ca, cb, complexes := numbers(m*k), numbers(k*n), make([]complex64, m*n)
	run("cgemm", map[string]any{"A": ca, "B": cb}, "C", complexes)
	for i, want := range product(ca, cb, m, n, k) {
		if d := complexes[i] - want; math.Hypot(float64(real(d)), float64(imag(d))) > 2e-6*k {
			differ("cgemm", i, complexes[i], want)
		}
	}

	const unknowns = 100
	matrix, solution := random(r, unknowns*unknowns), random(r, unknowns)
	for i := range unknowns {
		matrix[i*unknowns+i] = unknowns // more than the rest of the row, so that the method converges
	}
	x := make([]float32, unknowns)
	run("jacobi", map[string]any{"A": narrow(matrix), "b": narrow(product(matrix, solution, unknowns, 1, unknowns))}, "x", x)
	for i, want := range solution {
		if math.Abs(float64(x[i])-want) > 1e-4 {
			differ("jacobi", i, x[i], want)
		}
	}

	const queries, points, dimensions = 20, 300, 3
	q, p, index := random(r, queries*dimensions), random(r, points*dimensions), make([]uint32, queries)
	run("nearest", map[string]any{"queries": narrow(q), "points": narrow(p)}, "index", index)
	for i := range queries {
		least, want := math.Inf(1), 0
		for j := range points {
			sum := 0.0
			for l := range dimensions {
				sum += math.Pow(q[i*dimensions+l]-p[j*dimensions+l], 2)
			}
			if sum < least {
				least, want = sum, j
			}
		}
		if int(index[i]) != want {
			differ("nearest", i, index[i], want)
		}
	}
}
