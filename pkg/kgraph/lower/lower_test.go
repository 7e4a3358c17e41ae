package lower

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// paramsFile returns a parameter file with one array of two floats.
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
		t.Errorf("parameters: got %+v, %v; want p0 with the bytes of 1 and 2", got, err)
	}
	for n := range paramsFile() {
		if _, err := Params(bytes.NewReader(paramsFile()[:n])); err == nil {
			t.Errorf("parameter file cut to %d bytes: got no error, want one", n)
		}
	}
}

// FuzzParams checks that Params takes no more memory than the file justifies.
func FuzzParams(f *testing.F) {
	f.Add(paramsFile())
	f.Fuzz(func(t *testing.T, data []byte) {
		params, err := Params(bytes.NewReader(data))
		total := 0
		for _, p := range params {
			total += len(p.Data)
		}
		if err == nil && total > len(data) {
			t.Errorf("parameters of a file of %d bytes: got %d bytes of data, want at most the file's size", len(data), total)
		}
	})
}

const someList = `{"version":1,"tensors":{"a":{"shape":[2,2],"dtype":"f32"},"b":{"shape":[2],"dtype":"f32"},"c":{"shape":[2,2],"dtype":"f32"}},
"inputs":["a"],"outputs":["c"],"nodes":[{"op":"Add","inputs":["a","b"],"output":"c"}]}`

const aList = `{"version":1,
"tensors":{
  "a":{"shape":[2,2],"dtype":"f32"},
  "b":{"shape":[2],"dtype":"f32"},
  "c":{"shape":[2,2],"dtype":"f32"}},
"inputs":["a"],
"outputs":["c"],
"nodes":[
  {"op":"Add","inputs":["a","b"],"output":"c"}]}`

// TestBadLists checks that problems of a list are reported with line and place.
func TestBadLists(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{aList, ``, "ops.json:1: unexpected end of the text"},
		{aList, `[]`, "ops.json:1: a list, expected an object"},
		{aList, `null`, "ops.json:1: null, expected an object"},
		{`"output":"c"}]}`, `"output":"c"}]} {}`, "ops.json:9: text after the end of the object"},
		{`"output":"c"}]}`, `"output":"c"}]`, "ops.json:9: unexpected end of the text"},
		{`"outputs":["c"],`, `"outputs":["c"]`, "ops.json:8: /outputs: invalid character"},
		{`"inputs":["a"],` + "\n", `"input":["a"],` + "\n", "ops.json:6: /input: unknown key"},
		{`"inputs":["a"],` + "\n", `"inputs":["a"],"inputs":[],` + "\n", "ops.json:6: /inputs: the key is given twice"},
		{`"inputs":["a"],` + "\n", `"inputs":"a",` + "\n", `ops.json:6: /inputs: "a", expected a list`},
		{`"inputs":["a"],` + "\n", `"inputs":[7],` + "\n", `ops.json:6: /inputs/0: 7, expected a string`},
		{`"version":1`, `"version":2`, "ops.json:1: /version: 2, expected 1"},
		{`"version":1`, `"version":"1"`, `ops.json:1: /version: "1", expected a whole number`},
		{`"version":1`, `"version":1.5`, `ops.json:1: /version: 1.5, expected a whole number`},
		{`"b":{"shape":[2],"dtype":"f32"}`, `"b":{"shape":[2],"dtype":"f16"}`, `ops.json:4: /tensors/b/dtype: "f16", expected f32`},
		{`"b":{"shape":[2],"dtype":"f32"}`, `"b":{"shape":[2]}`, `ops.json:4: /tensors/b/dtype: "", expected f32`},
		{`"b":{"shape":[2]`, `"b":{"shape":[]`, "ops.json:4: /tensors/b/shape: []"},
		{`"b":{"shape":[2]`, `"b":{"shape":[-2]`, "ops.json:4: /tensors/b/shape: [-2]"},
		{`"b":{"shape":[2]`, `"b":{"shape":[65536,65536]`, "ops.json:4: /tensors/b/shape: [65536 65536]"},
		{`"b":{"shape":[2]`, `"b":{"shape":[9223372036854775808]`, "ops.json:4: /tensors/b/shape/0: 9223372036854775808, expected a whole number"},
		{`"b":{"shape":[2]`, `"b":{"key":"../b","shape":[2]`, `ops.json:4: /tensors/b/key: invalid key "../b"`},
		{`"b":{"shape":[2]`, `"a":{"shape":[2]`, "ops.json:4: /tensors/a: the key is given twice"},
		{`["a","b"]`, `["a","z"]`, `ops.json:9: /nodes/0/inputs/1: there is no tensor "z"`},
		{`["a","b"]`, `["a","c"]`, `ops.json:9: /nodes/0/inputs/1: "c" is only produced by node 0`},
		{`"output":"c"`, `"output":"z"`, `ops.json:9: /nodes/0/output: there is no tensor "z"`},
		{`"output":"c"}]`, `"output":"c"},` + "\n" + `{"op":"Add","inputs":["a","b"],"output":"c"}]`, `ops.json:10: /nodes/1/output: "c" is the output of two operations`},
		{`"inputs":["a"],` + "\n", `"inputs":["a","c"],` + "\n", `ops.json:6: /inputs/1: "c" is an input, but an operation produces it`},
		{`"outputs":["c"]`, `"outputs":["b"]`, `ops.json:7: /outputs/0: no operation produces "b"`},
		{`"outputs":["c"]`, `"outputs":[]`, "ops.json:7: /outputs: the list is empty"},
		{`"op":"Add"`, `"op":"Relu"`, "not supported: Relu of 2 inputs (node 0)"},
		{`["a","b"]`, `["b","a"]`, "not supported: Add of [2] and [2 2] to [2 2] (node 0)"},
	} {
		text := strings.Replace(aList, c.old, c.new, 1)
		if text == aList {
			t.Errorf("the replaced text %s is not part of the list", c.old)
		}
		if r, err := List(strings.NewReader(text), "ops.json", "p/"); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v, want %s", c.new, r, err, c.want)
		}
	}
}

const aGraph = `{"nodes":[
  {"op":"null","name":"x","inputs":[]},
  {"op":"tvm_op","name":"y","attrs":{"func_name":"f"},"inputs":[[0,0,0]]}],
"arg_nodes":[0],
"heads":[[1,0,0]],
"node_row_ptr":[0,1,2],
"attrs":{
  "dltype":["list_str",["float32","float32"]],
  "storage_id":["list_int",[0,1]],
  "shape":["list_shape",[[4],[4]]]}}`

const aLaunch = `{"f":[
  {"name":"k",
   "grid":[1,1,1],"block":[4,1,1],
   "args":[
    {"input":0},{"output":0},
    {"i32":4}]}]}`

// TestBadGraphs does the same for TVM graphs and their launches.
func TestBadGraphs(t *testing.T) {
	if _, err := TVM(strings.NewReader(aGraph), strings.NewReader(aLaunch), "g.json", "l.json", "k.ptx", ""); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"arg_nodes":[0]`, `"arg_nodes":[7]`, "g.json:4: /arg_nodes/0: there is no node 7"},
		{`"arg_nodes":[0]`, `"arg_nodes":{}`, "g.json:4: /arg_nodes: an object, expected a list"},
		{`"heads":[[1,0,0]]`, `"heads":[[2,0,0]]`, "g.json:5: /heads/0: [2 0 0] is not an output of a node"},
		{`"heads":[[1,0,0]]`, `"heads":[[1,1,0]]`, "g.json:5: /heads/0: node 1 has no output 1"},
		{`"heads":[[1,0,0]]`, `"heads":[[0,0,0]]`, "g.json:5: /heads/0: the head is an input"},
		{`"node_row_ptr":[0,1,2]`, `"node_row_ptr":[0,1]`, "g.json:6: /node_row_ptr: 2 numbers for 2 nodes"},
		{`"node_row_ptr":[0,1,2]`, `"node_row_ptr":[0,2,1]`, "g.json:6: /node_row_ptr: 1, expected more"},
		{`"node_row_ptr":[0,1,2]`, `"node_row_ptr":[0,1,1e9]`, "g.json:6: /node_row_ptr/2: 1e9, expected a whole number"},
		{`[0,1]],`, `[0]],`, "g.json:7: /attrs: 1 storage ids, 2 shapes and 2 types"},
		{`["list_int",[0,1]]`, `["list_int"]`, "g.json:9: /attrs/storage_id: 1 values, expected 2"},
		{`["list_int",[0,1]]`, `["list_int",["a"]]`, "g.json:9: /attrs/storage_id: expected a list"},
		{`"float32","float32"`, `"float32","float"`, "g.json:7: /attrs: entry 1 has the shape [4] and the type"},
		{`[[4],[4]]`, `[[4],[0]]`, "g.json:7: /attrs: entry 1 has the shape [0]"},
		{`"inputs":[[0,0,0]]`, `"inputs":[[1,0,0]]`, "g.json:3: /nodes/1/inputs/0: node 1 comes later"},
		{`"inputs":[[0,0,0]]`, `"inputs":[[-1,0,0]]`, "g.json:3: /nodes/1/inputs/0: [-1 0 0] is not an output"},
		{`"inputs":[[0,0,0]]`, `"inputs":[0]`, "g.json:3: /nodes/1/inputs/0: 0, expected a list"},
		{`"func_name":"f"`, `"func_name":"__nop"`, "g.json:5: /heads/0: the head is an input"},
		{`"op":"tvm_op"`, `"op":"call"`, "not supported: the operation call (node 1)"},
		{`"func_name":"f"`, `"func_name":"g"`, "not supported: l.json has no kernels for g"},
		{`"name":"x"`, `"name":"x","name":"y"`, "g.json:2: /nodes/0/name: the key is given twice"},
		{`[[4],[4]]]}}`, `[[4],[4]]]}`, "g.json:10: unexpected end of the text"},
		{`{"input":0}`, `{"input":1}`, "l.json:5: /f/0/args/0: y has no input 1"},
		{`{"output":0}`, `{"output":0.5}`, "l.json:5: /f/0/args/1: y has no output 0.5"},
		{`{"i32":4}`, `{"i32":4294967295}`, "l.json:6: /f/0/args/2: 4.294967295e+09 is not a valid i32"},
		{`{"i32":4}`, `{"i16":4}`, `l.json:6: /f/0/args/2: "i16", expected input`},
		{`{"i32":4}`, `{"i32":"4"}`, "l.json:6: /f/0/args/2: expected a number"},
		{`{"i32":4}`, `{}`, "l.json:6: /f/0/args/2: 0 keys"},
		{`"grid":[1,1,1]`, `"grid":[1,1]`, "l.json:3: /f/0/grid: 2 values, expected 3"},
		{`"grid":[1,1,1]`, `"girth":[1,1,1]`, "l.json:3: /f/0/girth: unknown key"},
		{`"name":"k"`, `"name":7`, "l.json:2: /f/0/name: 7, expected a string"},
	} {
		graph, launch := strings.Replace(aGraph, c.old, c.new, 1), strings.Replace(aLaunch, c.old, c.new, 1)
		if graph == aGraph && launch == aLaunch {
			t.Errorf("the replaced text %s is neither part of the graph nor of the launches", c.old)
		}
		if r, err := TVM(strings.NewReader(graph), strings.NewReader(launch), "g.json", "l.json", "k.ptx", ""); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v, want %s", c.new, r, err, c.want)
		}
	}
}

// FuzzList checks that List returns a valid request or an error.
func FuzzList(f *testing.F) {
	f.Add(someList)
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := List(strings.NewReader(text), "ops.json", "p/"); (r == nil) == (err == nil) {
			t.Errorf("List: got %v, %v; want either a request or an error", r, err)
		}
	})
}

// FuzzTVM checks that TVM returns a valid request or an error.
func FuzzTVM(f *testing.F) {
	f.Add(`{"nodes":[{"op":"null","name":"x","inputs":[]},{"op":"tvm_op","name":"y","attrs":{"func_name":"f"},"inputs":[[0,0,0]]}],
"arg_nodes":[0],"heads":[[1,0,0]],"node_row_ptr":[0,1,2],"attrs":{"dltype":["list_str",["float32","float32"]],"storage_id":["list_int",[0,1]],"shape":["list_shape",[[4],[4]]]}}`,
		`{"f":[{"name":"k","grid":[1,1,1],"block":[4,1,1],"args":[{"input":0},{"output":0},{"i32":4}]}]}`)
	f.Fuzz(func(t *testing.T, graph, launch string) {
		if r, err := TVM(strings.NewReader(graph), strings.NewReader(launch), "g.json", "l.json", "k.ptx", ""); (r == nil) == (err == nil) {
			t.Errorf("TVM: got %v, %v; want either a request or an error", r, err)
		}
	})
}
