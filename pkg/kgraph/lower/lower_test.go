package lower

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// paramsFile is a file of one array of two floats.
func paramsFile() []byte {
	var b []byte
	u64 := func(v uint64) { b = binary.LittleEndian.AppendUint64(b, v) }
	u64(paramsMagic)
	u64(0)
	u64(1)
	u64(2)
	b = append(b, "p0"...)
	u64(1)
	u64(arrayMagic)
	u64(0)
	u64(1) // device
	b = append(b, 2, 0, 0, 0, 2, 32, 1, 0)
	u64(1)
	u64(2)
	u64(8)
	return append(b, 0, 0, 128, 63, 0, 0, 0, 64)
}

func TestParams(t *testing.T) {
	got, err := Params(bytes.NewReader(paramsFile()))
	if err != nil || len(got) != 1 || got[0].Name != "p0" || !bytes.Equal(got[0].Data, []byte{0, 0, 128, 63, 0, 0, 0, 64}) {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range paramsFile() {
		if _, err := Params(bytes.NewReader(paramsFile()[:n])); err == nil {
			t.Errorf("%d bytes of it are a file", n)
		}
	}
}

// FuzzParams: no file makes it take more than the file has.
func FuzzParams(f *testing.F) {
	f.Add(paramsFile())
	f.Fuzz(func(t *testing.T, data []byte) {
		params, err := Params(bytes.NewReader(data))
		total := 0
		for _, p := range params {
			total += len(p.Data)
		}
		if err == nil && total > len(data) {
			t.Errorf("%d bytes of %d", total, len(data))
		}
	})
}

const someList = `{"version":1,"tensors":{"a":{"shape":[2,2],"dtype":"f32"},"b":{"shape":[2],"dtype":"f32"},"c":{"shape":[2,2],"dtype":"f32"}},
"inputs":["a"],"outputs":["c"],"nodes":[{"op":"Add","inputs":["a","b"],"output":"c"}]}`

// FuzzList: what comes of a list is a request, or an error.
func FuzzList(f *testing.F) {
	f.Add(someList)
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := List(strings.NewReader(text), "ops.json", "p/"); (r == nil) == (err == nil) {
			t.Errorf("%v, %v", r, err)
		}
	})
}

// FuzzTVM: likewise.
func FuzzTVM(f *testing.F) {
	f.Add(`{"nodes":[{"op":"null","name":"x","inputs":[]},{"op":"tvm_op","name":"y","attrs":{"func_name":"f"},"inputs":[[0,0,0]]}],
"arg_nodes":[0],"heads":[[1,0,0]],"node_row_ptr":[0,1,2],"attrs":{"dltype":["list_str",["float32","float32"]],"storage_id":["list_int",[0,1]],"shape":["list_shape",[[4],[4]]]}}`,
		`{"f":[{"name":"k","grid":[1,1,1],"block":[4,1,1],"args":[{"input":0},{"output":0},{"i32":4}]}]}`)
	f.Fuzz(func(t *testing.T, graph, launch string) {
		if r, err := TVM(strings.NewReader(graph), strings.NewReader(launch), "g.json", "l.json", "k.ptx", ""); (r == nil) == (err == nil) {
			t.Errorf("%v, %v", r, err)
		}
	})
}
