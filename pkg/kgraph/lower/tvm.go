package lower

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// tvmGraph is as much of the graph that TVM's graph executor reads as is needed.
type tvmGraph struct {
	Nodes []struct {
		Op    string `json:"op"`
		Name  string `json:"name"`
		Attrs struct {
			Function string `json:"func_name"`
		} `json:"attrs"`
		Inputs [][]int `json:"inputs"`
	} `json:"nodes"`
	ArgNodes []int   `json:"arg_nodes"`
	Heads    [][]int `json:"heads"`
	Rows     []int   `json:"node_row_ptr"`
	Attrs    struct {
		Storage [2]json.RawMessage `json:"storage_id"`
		Shape   [2]json.RawMessage `json:"shape"`
		DType   [2]json.RawMessage `json:"dltype"`
	} `json:"attrs"`
}

// launches are the kernels of each function, as LAUNCH.json gives them.
type launches map[string][]struct {
	Name   string           `json:"name"`
	Grid   [3]int           `json:"grid"`
	Block  [3]int           `json:"block"`
	Shared int              `json:"shared"`
	Args   []map[string]any `json:"args"`
}

// TVM lowers a graph of TVM's, whose kernels are in the PTX of a file. Launch says
// how each function's kernels are launched: the graph itself does not.
func TVM(graph, launch io.Reader, graphName, launchName, module, prefix string) (*kgraph.Request, error) {
	c := &tvm{builder: newBuilder(), prefix: prefix}
	var err error
	if c.source, err = decode(graph, graphName, false, &c.g); err != nil {
		return nil, err
	}
	if c.launchSource, err = decode(launch, launchName, true, &c.launches); err != nil {
		return nil, err
	}
	c.r.Modules = []kgraph.Module{{Name: "tvm", File: module}}
	if err := c.entries(); err != nil {
		return nil, err
	}
	if err := c.roles(); err != nil {
		return nil, err
	}
	for i := range c.g.Nodes {
		if err := c.node(i); err != nil {
			return nil, err
		}
	}
	if len(c.missing) > 0 {
		return nil, &UnsupportedError{c.missing}
	}
	return c.finish()
}

type tvm struct {
	*builder
	*source      // the graph
	launchSource *source
	g            tvmGraph
	launches     launches
	prefix       string

	storage []int    // by entry
	sizes   []int64  // bytes, by entry
	alias   []int    // by entry: the one whose memory it is
	inputs  []string // by entry: the key of an input
	outputs []string // by entry: the key of an output
	missing []string
}

// entry is the number of a node's output.
func (c *tvm) entry(ref []int, where string) (int, error) {
	if len(ref) < 2 || ref[0] < 0 || ref[0] >= len(c.g.Nodes) || ref[1] < 0 {
		return 0, c.fault(where, "%v is no output of a node", ref)
	}
	e := c.g.Rows[ref[0]] + ref[1]
	if e >= c.g.Rows[ref[0]+1] {
		return 0, c.fault(where, "node %d has no output %d", ref[0], ref[1])
	}
	return e, nil
}

// entries reads what is known of each output of each node.
func (c *tvm) entries() error {
	g := &c.g
	if len(g.Nodes) == 0 || len(g.Rows) != len(g.Nodes)+1 {
		return c.fault("/node_row_ptr", "%d numbers for %d nodes, expected one more", len(g.Rows), len(g.Nodes))
	}
	for i, n := range g.Rows {
		if n < 0 || n > 1<<20 || i > 0 && n <= g.Rows[i-1] {
			return c.fault("/node_row_ptr", "%d, expected more than the one before", n)
		}
	}
	n := g.Rows[len(g.Nodes)]
	var shapes [][]int64
	var types []string
	for _, a := range []struct {
		what string
		raw  json.RawMessage
		into any
	}{{"storage_id", g.Attrs.Storage[1], &c.storage}, {"shape", g.Attrs.Shape[1], &shapes}, {"dltype", g.Attrs.DType[1], &types}} {
		if err := json.Unmarshal(a.raw, a.into); err != nil {
			return c.fault("/attrs/"+a.what, "expected a list: %v", err)
		}
	}
	if len(c.storage) != n || len(shapes) != n || len(types) != n {
		return c.fault("/attrs", "%d storage ids, %d shapes and %d types, expected %d of each", len(c.storage), len(shapes), len(types), n)
	}
	c.sizes, c.alias = make([]int64, n), make([]int, n)
	c.inputs, c.outputs = make([]string, n), make([]string, n)
	for i := range n {
		bits := trailing(types[i])
		elems := elements(shapes[i])
		if len(shapes[i]) == 0 {
			elems = 1 // a number
		}
		if bits == 0 || elems == 0 {
			return c.fault("/attrs", "entry %d has the shape %v of %q", i, shapes[i], types[i])
		}
		c.sizes[i] = elems * ((bits + 7) / 8)
		c.alias[i] = i
	}
	return nil
}

// trailing is the number at the end of a type's name, like 32 of float32.
func trailing(s string) (n int64) {
	if s == "bool" {
		return 8
	}
	scale := int64(1)
	for i := len(s) - 1; i >= 0 && s[i] >= '0' && s[i] <= '9' && scale < 1e4; i-- {
		n += int64(s[i]-'0') * scale
		scale *= 10
	}
	return n
}

// roles finds which entries are objects, and follows aliases.
func (c *tvm) roles() error {
	for i := range c.g.Nodes {
		n := &c.g.Nodes[i]
		for j, ref := range n.Inputs {
			where := fmt.Sprintf("/nodes/%d/inputs/%d", i, j)
			if _, err := c.entry(ref, where); err != nil {
				return err
			}
			if ref[0] >= i {
				return c.fault(where, "node %d comes later: nodes are in the order in which they run", ref[0])
			}
		}
		if n.Op == "tvm_op" && n.Attrs.Function == "__nop" {
			if len(n.Inputs) != 1 {
				return c.fault(fmt.Sprintf("/nodes/%d/inputs", i), "%d inputs of __nop, expected one", len(n.Inputs))
			}
			from, _ := c.entry(n.Inputs[0], "")
			to := c.g.Rows[i]
			if c.sizes[to] != c.sizes[from] {
				return c.fault(fmt.Sprintf("/nodes/%d", i), "__nop from %d bytes to %d", c.sizes[from], c.sizes[to])
			}
			c.alias[to] = c.alias[from] // earlier nodes' are settled
		}
	}
	for i, node := range c.g.ArgNodes {
		if node < 0 || node >= len(c.g.Nodes) {
			return c.fault(fmt.Sprintf("/arg_nodes/%d", i), "there is no node %d", node)
		}
		c.inputs[c.g.Rows[node]] = c.prefix + c.g.Nodes[node].Name
	}
	for i, head := range c.g.Heads {
		where := fmt.Sprintf("/heads/%d", i)
		e, err := c.entry(head, where)
		if err != nil {
			return err
		}
		root := c.alias[e]
		if c.inputs[root] != "" {
			return c.fault(where, "it is an input, expected what a kernel makes")
		}
		key := c.prefix + c.g.Nodes[head[0]].Name
		if head[1] > 0 {
			key += fmt.Sprintf(".%d", head[1])
		}
		c.outputs[root] = key
	}
	return nil
}

// memory is the buffer of an entry: an object's, or the one of its storage id.
func (c *tvm) memory(e int) int {
	e = c.alias[e]
	switch {
	case c.inputs[e] != "":
		return c.buffer(kgraph.Buffer{Name: "in " + c.inputs[e], Kind: kgraph.Input, Key: c.inputs[e], Size: c.sizes[e]})
	case c.outputs[e] != "":
		return c.buffer(kgraph.Buffer{Name: "out " + c.outputs[e], Kind: kgraph.Output, Key: c.outputs[e], Size: c.sizes[e]})
	}
	i := c.buffer(kgraph.Buffer{Name: fmt.Sprintf("storage %d", c.storage[e]), Kind: kgraph.Temporary, Size: c.sizes[e]})
	c.r.Buffers[i].Size = max(c.r.Buffers[i].Size, c.sizes[e])
	return i
}

func (c *tvm) node(i int) error {
	n := &c.g.Nodes[i]
	switch {
	case n.Op == "null" || n.Attrs.Function == "__nop":
		return nil
	case n.Op != "tvm_op":
		c.missing = append(c.missing, fmt.Sprintf("the operation %s (node %d)", n.Op, i))
		return nil
	}
	kernels, known := c.launches[n.Attrs.Function]
	if !known {
		if what := fmt.Sprintf("%s does not say how %s is launched", c.launchSource.name, n.Attrs.Function); !slices.Contains(c.missing, what) {
			c.missing = append(c.missing, what)
		}
		return nil
	}
	for j := range kernels {
		k := kgraph.Kernel{Name: kernels[j].Name, Grid: kernels[j].Grid, Block: kernels[j].Block, Shared: kernels[j].Shared}
		for a, form := range kernels[j].Args {
			arg, err := c.arg(i, form)
			if err != nil {
				return c.launchSource.fault(fmt.Sprintf("/%s/%d/args/%d", kgraph.Pointer(n.Attrs.Function), j, a), "%v", err)
			}
			k.Args = append(k.Args, arg)
		}
		c.r.Kernels = append(c.r.Kernels, k)
	}
	return nil
}

// arg is {"input":0}, {"output":0} or a number like {"i32":64}.
func (c *tvm) arg(node int, form map[string]any) (kgraph.Arg, error) {
	if len(form) != 1 {
		return kgraph.Arg{}, fmt.Errorf("%d keys, expected one of input, output, i32, u32, i64, u64, f32 and f64", len(form))
	}
	for key, value := range form {
		v, ok := value.(float64)
		if !ok {
			return kgraph.Arg{}, errors.New("expected a number")
		}
		n := &c.g.Nodes[node]
		switch key {
		case "input":
			if v < 0 || v >= float64(len(n.Inputs)) || v != math.Trunc(v) {
				return kgraph.Arg{}, fmt.Errorf("%s has no input %v", n.Name, v)
			}
			e, err := c.entry(n.Inputs[int(v)], "")
			return kgraph.Arg{Type: "buffer", Buffer: c.memory(e)}, err
		case "output":
			e := c.g.Rows[node] + int(min(max(v, -1), 1<<20))
			if e < c.g.Rows[node] || e >= c.g.Rows[node+1] || v != math.Trunc(v) {
				return kgraph.Arg{}, fmt.Errorf("%s has no output %v", n.Name, v)
			}
			return kgraph.Arg{Type: "buffer", Buffer: c.memory(e)}, nil
		case "f32":
			return kgraph.Arg{Type: key, Value: binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(v)))}, nil
		case "f64":
			return kgraph.Arg{Type: key, Value: binary.LittleEndian.AppendUint64(nil, math.Float64bits(v))}, nil
		case "i32", "u32":
			if v != math.Trunc(v) || v < math.MinInt32 || v > math.MaxUint32 || key == "u32" && v < 0 || key == "i32" && v > math.MaxInt32 {
				return kgraph.Arg{}, fmt.Errorf("%v is no %s", v, key)
			}
			return kgraph.Arg{Type: key, Value: binary.LittleEndian.AppendUint32(nil, uint32(int64(v)))}, nil
		case "i64", "u64":
			if v != math.Trunc(v) || math.Abs(v) > 1<<53 || key == "u64" && v < 0 {
				return kgraph.Arg{}, fmt.Errorf("%v is no %s that JSON can say exactly", v, key)
			}
			return kgraph.Arg{Type: key, Value: binary.LittleEndian.AppendUint64(nil, uint64(int64(v)))}, nil
		default:
			return kgraph.Arg{}, fmt.Errorf("%q, expected input, output, i32, u32, i64, u64, f32 or f64", key)
		}
	}
	return kgraph.Arg{}, nil
}
