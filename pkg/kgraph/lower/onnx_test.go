package lower

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// onnxFile returns a model that the onnx package for Python (1.12) wrote. mlp.onnx has the nodes that torch.onnx.export
// writes for Flatten, Linear, ReLU and Linear: a Gemm with transB, and a MatMul with an Add.
func onnxFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestONNX(t *testing.T) {
	r, params, err := ONNX(bytes.NewReader(onnxFile(t, "mlp.onnx")), "mlp/", map[string]int64{"batch": 2})
	if err != nil {
		t.Fatal(err)
	}
	var kernels, objects, stored []string
	for _, k := range r.Kernels {
		kernels = append(kernels, k.Name)
	}
	for _, b := range r.Buffers {
		if b.Key != "" {
			objects = append(objects, b.Kind.String()+" "+b.Key)
		}
	}
	for _, p := range params {
		stored = append(stored, p.Name)
	}
	if want := []string{"sgemm", "vadd", "vadd", "relu", "sgemm", "vadd", "vadd"}; !slices.Equal(kernels, want) {
		t.Errorf("kernels: got %v, want %v", kernels, want)
	}
	if want := []string{"input mlp/input", "input mlp/fc1.weight/transposed", "input mlp/fc1.bias", "input mlp/onnx__MatMul_12", "output mlp/output", "input mlp/fc2.bias"}; !equalSets(objects, want) {
		t.Errorf("objects: got %v, want %v", objects, want)
	}
	if want := []string{"mlp/fc1.weight/transposed", "mlp/fc1.bias", "mlp/onnx__MatMul_12", "mlp/fc2.bias"}; !equalSets(stored, want) {
		t.Errorf("parameters: got %v, want %v", stored, want)
	}
	if err := CheckParams(params, r, ""); err != nil {
		t.Errorf("parameters: %v", err)
	}
}

func equalSets(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func TestBadONNX(t *testing.T) {
	for _, c := range []struct {
		file, old, new string
		unsupported    bool
		want           string
	}{
		{"mlp.onnx", "", "", false, `the dimension "batch" of the input "input" has no size: give one, like batch=1`},
		{"unsupported.onnx", "", "", true, `Softmax (node 0, "soft"): expected Add, Constant, Flatten, Gemm, Identity, MatMul or Relu`},
		{"unsupported.onnx", "Softmax", "Flatten", true, `Gemm (node 1, "g"): alpha is 2, expected 1`},
		{"mlp.onnx", "Gemm", "Gelu", true, `Gelu (node 1, "/fc1/Gelu"): expected`},
		{"mlp.onnx", "transB", "transA", true, "transA is 1, expected 0"},
		{"mlp.onnx", "MatMul_12", "MatMul_13", false, ""}, // everywhere
		{"mlp.onnx", "\x12\x06output", "\x12\x06outpuX", true, `the output "output", which no supported node produces`},
	} {
		data := onnxFile(t, c.file)
		dims := map[string]int64{"batch": 2}
		if c.old == "" {
			dims = nil
		}
		_, _, err := ONNX(bytes.NewReader(bytes.ReplaceAll(data, []byte(c.old), []byte(c.new))), "", dims)
		var unsupported *UnsupportedError
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) || errors.As(err, &unsupported) != c.unsupported {
			t.Errorf("%s with %q for %q: got %v, want %q", c.file, c.new, c.old, err, c.want)
		}
	}
	data := onnxFile(t, "mlp.onnx")
	for n := range data { // most of them are malformed; none is lowered
		if _, _, err := ONNX(bytes.NewReader(data[:n]), "", map[string]int64{"batch": 2}); err == nil && n < len(data)-10 {
			t.Errorf("model cut to %d bytes: got no error, want one", n)
		}
	}
}

// FuzzONNX checks that a request lowered from any file is valid, and that its parameters fit.
func FuzzONNX(f *testing.F) {
	f.Add(onnxFile(f, "mlp.onnx"))
	f.Add(onnxFile(f, "unsupported.onnx"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, params, err := ONNX(bytes.NewReader(data), "m/", map[string]int64{"batch": 2})
		if err != nil {
			return
		}
		if err := CheckParams(params, r, ""); err != nil {
			t.Error(err)
		}
		text, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, problems := kgraph.Parse(text); problems != nil {
			t.Error(problems[0])
		}
	})
}

// A reshaped tensor is a view of the same buffer, except for an output.
func TestReshape(t *testing.T) {
	const list = `{"version":1,"tensors":{"a":{"shape":[2,2],"dtype":"f32"},"b":{"shape":[4],"dtype":"f32"},"c":{"shape":[4],"dtype":"f32"},"d":{"shape":[1,4],"dtype":"f32"}},
"inputs":["a"],"outputs":["c","d"],"nodes":[{"op":"Reshape","inputs":["a"],"output":"b"},{"op":"Relu","inputs":["b"],"output":"c"},{"op":"Reshape","inputs":["b"],"output":"d"}]}`
	r, err := List(strings.NewReader(list), "list", "")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Buffers) != 3 || len(r.Kernels) != 2 || r.Buffers[r.Kernels[0].Args[0].Buffer].Key != "a" || r.Kernels[1].Name != "saxpy" || r.Buffers[r.Kernels[1].Args[2].Buffer].Key != "d" {
		t.Errorf("request: got the buffers %+v and the kernels %+v, want relu of a and a copy of a to d", r.Buffers, r.Kernels)
	}
	if _, err := List(strings.NewReader(strings.Replace(list, `"d":{"shape":[1,4]`, `"d":{"shape":[1,5]`, 1)), "list", ""); err == nil || !strings.Contains(err.Error(), "Reshape of 1 inputs") {
		t.Errorf("reshape to more elements: got %v, want an error", err)
	}
}
