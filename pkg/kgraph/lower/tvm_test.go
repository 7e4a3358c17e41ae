package lower

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// chainGraph is a graph with two functions and a view. x and w are arguments, add is their sum, and view is the
// memory of add with another shape.
const chainGraph = `{"nodes":[
  {"op":"null","name":"x","inputs":[]},
  {"op":"null","name":"w","inputs":[]},
  {"op":"tvm_op","name":"add","attrs":{"func_name":"f","num_inputs":"2","num_outputs":"1"},"inputs":[[0,0,0],[1,0,0]]},
  {"op":"tvm_op","name":"view","attrs":{"func_name":"__nop"},"inputs":[[2,0,0]]},
  {"op":"tvm_op","name":"more","attrs":{"func_name":"f"},"inputs":[[3,0,0],[1,0,0]]}],
"arg_nodes":[0,1],
"heads":[[4,0,0]],
"node_row_ptr":[0,1,2,3,4,5],
"attrs":{
  "dltype":["list_str",["float32","float32","float32","float32","float32"]],
  "storage_id":["list_int",[0,1,2,2,3]],
  "shape":["list_shape",[[4],[4],[4],[2,2],[4]]]}}`

const chainLaunch = `{"f":[
  {"name":"k","grid":[1,1,1],"block":[4,1,1],"args":[{"input":0},{"input":1},{"output":0}]}]}`

// TestTVMRefusesAmbiguousGraphs checks that ambiguous graphs, and graphs that a request cannot express, are
// refused with the reason.
func TestTVMRefusesAmbiguousGraphs(t *testing.T) {
	for _, c := range []struct {
		old, new    string
		unsupported bool
		want        string
	}{
		// Outputs that share memory, through chains of aliases.
		{`[[4,0,0]]`, `[[2,0,0],[3,0,0]]`, true, "the output p/view in the memory of the output p/add"},
		{`[[4,0,0]]`, `[[3,0,0],[2,0,0]]`, true, "the output p/add in the memory of the output p/view"},
		{`[[4,0,0]]`, `[]`, false, "g.json:8: /heads: the list is empty"},
		{`"name":"more"`, `"name":"x"`, false, "g.json:8: /heads/0: the object p/x is both entry 0 and entry 4"},
		{`"name":"view"`, `"name":"x"`, true, ""}, // view is not an object, so its name is free
		{`[[4,0,0]]`, `[[4,0,0],[4,0,0]]`, true, ""},
		{`"heads":[[4,0,0]]`, `"heads":[[4,0,1]]`, false, "g.json:8: /heads/0: version 1 of node 4's output"},
		{`"heads":[[4,0,0]]`, `"heads":[[4,0,0,0]]`, false, "g.json:8: /heads/0: [4 0 0 0] is not an output"},
		// Null nodes.
		{`"arg_nodes":[0,1]`, `"arg_nodes":[0]`, false, "g.json:3: /nodes/1: w is a null node but not in arg_nodes"},
		{`"arg_nodes":[0,1]`, `"arg_nodes":[0,1,2]`, false, "g.json:7: /arg_nodes/2: node 2 (add) is a tvm_op, expected null"},
		{`"name":"w"`, `"name":"x"`, false, "g.json:7: /arg_nodes/1: the argument x is both node 0 and node 1"},
		{`"name":"w","inputs":[]`, `"name":"w","inputs":[[0,0,0]]`, false, "g.json:3: /nodes/1: null with 1 inputs"},
		// Nodes without output.
		{`{"op":"tvm_op","name":"view"`, `{"op":"call","name":"view"`, true, "the operation call (node 3)"},
		{`,{"output":0}]}`, `]}`, true, "output 0 of add (node 2), which view uses: l.json lists no kernel of f"},
		{`,{"output":0}]}`, `]}`, true, "output 0 of more (node 4), which the request uses"},
		{"{\"f\":[\n" + `  {"name":"k","grid":[1,1,1],"block":[4,1,1],"args":[{"input":0},{"input":1},{"output":0}]}]}`, `{"f":[]}`, true, "output 0 of add (node 2)"},
		{`"num_outputs":"1"`, `"num_outputs":"2"`, false, `g.json:4: /nodes/2/attrs/num_outputs: "2", but the node has 1`},
		{`"num_inputs":"2"`, `"num_inputs":"1"`, false, `g.json:4: /nodes/2/attrs/num_inputs: "1", but the node has 2`},
		{`"node_row_ptr":[0,`, `"node_row_ptr":[-1,`, false, "g.json:9: /node_row_ptr: -1"},
		{`"node_row_ptr":[0,1,2,3,4,5]`, `"node_row_ptr":[1,2,3,4,5,6]`, false, "g.json:9: /node_row_ptr/0: 1, expected 0"},
		// Storage.
		{`[0,1,2,2,3]`, `[0,1,2,4,3]`, true, "__nop from storage 2 to storage 4 (node 3, view)"},
		{`[0,1,2,2,3]`, `[0,1,1,1,3]`, true, "add (node 2) in the memory of the input p/w"},
		{`[0,1,2,2,3]`, `[0,1,2,2,0]`, true, "more (node 4) in the memory of the input p/x"},
		{`[0,1,2,2,3]`, `[0,1,-1,-1,3]`, false, "g.json:12: /attrs/storage_id: -1 for entry 2"},
		{`"attrs":{` + "\n", `"attrs":{"device_index":["list_int",[2,2,2,2,1]],` + "\n", true, "devices of several types (device_index [1 2])"},
		{`"attrs":{` + "\n", `"attrs":{"device_index":["list_int",[2,2,2,2,2]],` + "\n", true, ""},
		{`"attrs":{` + "\n", `"attrs":{"storage_scope":["list_str",["","global","global.texture","",""]],` + "\n", true, `memory of the scope "global.texture" (entry 2)`},
		{`"attrs":{` + "\n", `"attrs":{"storage_scope":["list_str",[1]],` + "\n", false, "g.json:10: /attrs/storage_scope: expected a list"},
		{`"attrs":{` + "\n", `"attrs":{"storage_scope":["list_str"],` + "\n", false, "g.json:10: /attrs/storage_scope: 1 values, expected 2"},
		// Numbers that JSON or the type cannot represent.
		{`{"output":0}]`, `{"output":0},{"i64":9007199254740993}]`, false, "l.json:2: /f/0/args/3: 9.007199254740992e+15 is not a whole number that fits i64"},
		{`{"output":0}]`, `{"output":0},{"f32":1e39}]`, false, "l.json:2: /f/0/args/3: 1e+39 is not a valid f32"},
		{`{"output":0}]`, `{"output":0},{"f32":1e-60}]`, false, "l.json:2: /f/0/args/3: 1e-60 is not a valid f32"},
	} {
		graph, launch := strings.Replace(chainGraph, c.old, c.new, 1), strings.Replace(chainLaunch, c.old, c.new, 1)
		if graph == chainGraph && launch == chainLaunch {
			t.Errorf("the replaced text %s is neither part of the graph nor of the launches", c.old)
		}
		r, err := TVM(strings.NewReader(graph), strings.NewReader(launch), "g.json", "l.json", "k.ptx", "p/")
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: got the error %v, want none", c.new, err)
			}
			continue
		}
		var not *UnsupportedError
		if err == nil || errors.As(err, &not) != c.unsupported || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v, want %s", c.new, r, err, c.want)
		}
	}
}

// TestTVMSizes checks that the size of an element follows from the name of its type, vectors included.
func TestTVMSizes(t *testing.T) {
	for name, want := range map[string]int64{
		"float32": 4, "float32x4": 16, "int8x4": 4, "float16": 2, "bfloat16": 2, "float64x2": 16, "uint8": 1, "int64": 8, "bool": 1,
		"uint1": 1, "int4": 1, "int4x2": 1, "uint1x32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1, "e5m2_float8": 1, "float8_e4m3fnx4": 4, "float16x16": 32,
		// Names without a defined size.
		"float": 0, "": 0, "handle": 0, "float32x": 0, "float32xvscalex4": 0, "custom[posites2]32": 0, "int3": 0, "int4x3": 0, "float0": 0, "32": 0, "x4": 0, "float32x4x2": 0,
	} {
		graph := strings.Replace(strings.Replace(aGraph, `"float32"]`, fmt.Sprintf("%q]", name), 1), "[[4],[4]]", "[[4],[3,2]]", 1)
		r, err := TVM(strings.NewReader(graph), strings.NewReader(aLaunch), "g.json", "l.json", "k.ptx", "")
		if want == 0 {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("entry 1 has the shape [3 2] and the type %q", name)) {
				t.Errorf("type %q: got the error %v, want one that names the shape and the type of entry 1", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("type %q: got the error %v, want %d bytes for an element", name, err, want)
			continue
		}
		for _, b := range r.Buffers {
			if b.Kind == kgraph.Output && b.Size != 6*want {
				t.Errorf("6 of %s have %d bytes, want %d", name, b.Size, 6*want)
			}
		}
	}
}

// TestBadParams checks that malformed parameter files are errors.
func TestBadParams(t *testing.T) {
	good := paramsFile()
	lanes := append([]byte{}, good...)
	lanes[8+8+8+8+2+8+8+8+8+4+2] = 4 // lanes of the array's type
	twice := append([]byte{}, good[:16]...)
	twice = append(twice, 2, 0, 0, 0, 0, 0, 0, 0)
	twice = append(append(twice, good[24:34]...), good[24:34]...)
	twice = append(twice, 2, 0, 0, 0, 0, 0, 0, 0)
	twice = append(append(twice, good[42:]...), good[42:]...)
	for what, data := range map[string][]byte{"vectors of 4 lanes": lanes, `"p0" is given twice`: twice} {
		if got, err := Params(strings.NewReader(string(data))); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("malformed parameter file: got %+v, %v; want an error with %s", got, err, what)
		}
	}
}

// TestCheckParams checks that a parameter must match the graph's argument.
func TestCheckParams(t *testing.T) {
	r, err := TVM(strings.NewReader(chainGraph), strings.NewReader(chainLaunch), "g.json", "l.json", "k.ptx", "p/")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		size int
		want string
	}{
		{"w", 16, ""},
		{"another", 7, ""},
		{"w", 12, `"w" has 12 bytes, but the graph's argument has 16`},
		{"more", 16, `"more" is an output`},
		{"w\n", 16, `the name of the parameter "p/w\n" is not a valid key`},
	} {
		err := CheckParams([]Param{{c.name, make([]byte, c.size)}}, r, "p/")
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of %d bytes: %v, want %q", c.name, c.size, err, c.want)
		}
	}
}
