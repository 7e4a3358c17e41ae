package lower

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// tvmGraph holds the used parts of a graph for TVM's graph executor.
type tvmGraph struct {
	Nodes []struct {
		Op    string `json:"op"`
		Name  string `json:"name"`
		Attrs struct {
			Function string `json:"func_name"`
			Inputs   string `json:"num_inputs"`
			Outputs  string `json:"num_outputs"`
		} `json:"attrs"`
		Inputs [][]int `json:"inputs"`
	} `json:"nodes"`
	ArgNodes []int   `json:"arg_nodes"`
	Heads    [][]int `json:"heads"`
	Rows     []int   `json:"node_row_ptr"`
	Attrs    struct {
		Storage []json.RawMessage `json:"storage_id"`
		Shape   []json.RawMessage `json:"shape"`
		DType   []json.RawMessage `json:"dltype"`
		// Absent if all entries are plain memory of one device.
		Device []json.RawMessage `json:"device_index"`
		Scope  []json.RawMessage `json:"storage_scope"`
	} `json:"attrs"`
}

// launches maps each function to its kernels, as in LAUNCH.json.
type launches map[string][]struct {
	Name   string           `json:"name"`
	Grid   []int            `json:"grid"`
	Block  []int            `json:"block"`
	Shared int              `json:"shared"`
	Args   []map[string]any `json:"args"`
}

// TVM lowers a TVM graph whose kernels are in a PTX file. The graph does not contain the launches; the
// launch file lists the kernels of each function with their grids, blocks and arguments. The error is an
// *UnsupportedError if a request cannot express the graph, for example two outputs in one memory.
func TVM(graph, launch io.Reader, graphName, launchName, module, prefix string) (*kgraph.Request, error) {
	c := &tvm{builder: newBuilder(), prefix: prefix}
	var err error
	if c.source, err = decode(graph, graphName, lenient, &c.g); err != nil {
		return nil, err
	}
	if c.launchSource, err = decode(launch, launchName, strict, &c.launches); err != nil {
		return nil, err
	}
	c.r.Modules = []kgraph.Module{{Name: "tvm", File: module}}
	for _, step := range []func() error{c.entries, c.references, c.arguments, c.heads} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	c.sharedStorage()
	for i := range c.g.Nodes {
		if err := c.node(i); err != nil {
			return nil, err
		}
	}
	if len(c.missing) == 0 {
		c.unwritten()
	}
	if len(c.missing) > 0 {
		return nil, &UnsupportedError{c.missing}
	}
	return c.finish()
}

type tvm struct {
	*builder
	*source      // of the graph
	launchSource *source
	g            tvmGraph
	launches     launches
	prefix       string

	storage []int    // by entry
	sizes   []int64  // bytes, by entry
	alias   []int    // by entry: the entry whose memory it uses
	inputs  []string // by entry: key if it is an input
	outputs []string // by entry: key if it is an output
	written []bool   // by entry: whether a kernel has it as an output
	missing []string // features that a request cannot express
}

// unsupported adds a feature that a request cannot express, unless it was added before.
func (c *tvm) unsupported(format string, args ...any) {
	if feature := fmt.Sprintf(format, args...); !slices.Contains(c.missing, feature) {
		c.missing = append(c.missing, feature)
	}
}

// entry returns the number of a node's output among all outputs.
func (c *tvm) entry(ref []int, where string) (int, error) {
	if len(ref) < 2 || len(ref) > 3 || ref[0] < 0 || ref[0] >= len(c.g.Nodes) || ref[1] < 0 {
		return 0, c.fault(where, "%v is not an output of a node", ref)
	}
	if len(ref) == 3 && ref[2] != 0 {
		return 0, c.fault(where, "version %d of node %d's output, expected 0: a node cannot change another node's output", ref[2], ref[0])
	}
	e := c.g.Rows[ref[0]] + ref[1]
	if e >= c.g.Rows[ref[0]+1] {
		return 0, c.fault(where, "node %d has no output %d", ref[0], ref[1])
	}
	return e, nil
}

// entries reads the attributes of all entries, which are the outputs of all nodes.
func (c *tvm) entries() error {
	g := &c.g
	if len(g.Nodes) == 0 || len(g.Rows) != len(g.Nodes)+1 {
		return c.fault("/node_row_ptr", "%d numbers for %d nodes, expected one number more than nodes", len(g.Rows), len(g.Nodes))
	}
	for i, n := range g.Rows {
		if n < 0 || n > 1<<20 || i > 0 && n <= g.Rows[i-1] {
			return c.fault("/node_row_ptr", "%d, expected more than the number before it", n)
		}
	}
	if g.Rows[0] != 0 {
		return c.fault("/node_row_ptr/0", "%d, expected 0", g.Rows[0])
	}
	n := g.Rows[len(g.Nodes)]
	var shapes [][]int64
	var types []string
	err := cmp.Or(
		c.list("storage_id", g.Attrs.Storage, &c.storage),
		c.list("shape", g.Attrs.Shape, &shapes),
		c.list("dltype", g.Attrs.DType, &types))
	if err != nil {
		return err
	}
	if len(c.storage) != n || len(shapes) != n || len(types) != n {
		return c.fault("/attrs", "%d storage ids, %d shapes and %d types, expected %d of each", len(c.storage), len(shapes), len(types), n)
	}
	c.sizes, c.alias, c.written = make([]int64, n), make([]int, n), make([]bool, n)
	c.inputs, c.outputs = make([]string, n), make([]string, n)
	for i := range n {
		size := elementSize(types[i])
		elems := elements(shapes[i])
		if len(shapes[i]) == 0 {
			elems = 1 // a scalar
		}
		if size == 0 || elems == 0 {
			return c.fault("/attrs", "entry %d has the shape %v and the type %q, expected a known size above 0", i, shapes[i], types[i])
		}
		if c.storage[i] < 0 {
			return c.fault("/attrs/storage_id", "%d for entry %d, expected 0 or more", c.storage[i], i)
		}
		c.sizes[i] = elems * size
		c.alias[i] = i
	}
	return c.places()
}

// list decodes the values of one of the graph's attributes: its type and the list. A missing attribute has no
// values.
func (c *tvm) list(attr string, raw []json.RawMessage, into any) error {
	switch {
	case raw == nil:
		return nil
	case len(raw) != 2:
		return c.fault("/attrs/"+attr, "%d values, expected 2", len(raw))
	}
	if err := json.Unmarshal(raw[1], into); err != nil {
		return c.fault("/attrs/"+attr, "expected a list: %v", err)
	}
	return nil
}

// places reports entries that are not plain memory of one device as unsupported.
func (c *tvm) places() error {
	var devices []int
	var scopes []string
	err := cmp.Or(
		c.list("device_index", c.g.Attrs.Device, &devices),
		c.list("storage_scope", c.g.Attrs.Scope, &scopes))
	if err != nil {
		return err
	}
	if different := slices.Compact(slices.Sorted(slices.Values(devices))); len(different) > 1 {
		c.unsupported("a graph for devices of several types (device_index %v)", different)
	}
	for i, scope := range scopes {
		if scope != "" && scope != "global" {
			c.unsupported("memory of the scope %q (entry %d)", scope, i)
		}
	}
	return nil
}

// references validates the inputs and outputs of all nodes, and resolves aliases.
func (c *tvm) references() error {
	for i := range c.g.Nodes {
		if err := c.nodeReferences(i); err != nil {
			return err
		}
	}
	return nil
}

// nodeReferences validates a node's inputs and outputs. If the node is a __nop, it resolves its alias.
func (c *tvm) nodeReferences(i int) error {
	n := &c.g.Nodes[i]
	for j, ref := range n.Inputs {
		where := fmt.Sprintf("/nodes/%d/inputs/%d", i, j)
		if _, err := c.entry(ref, where); err != nil {
			return err
		}
		if ref[0] >= i {
			return c.fault(where, "node %d comes later, but nodes must be listed in the order in which they run", ref[0])
		}
	}
	outputs := c.g.Rows[i+1] - c.g.Rows[i]
	for _, counted := range []struct {
		attr, declared string
		n              int
	}{{"num_inputs", n.Attrs.Inputs, len(n.Inputs)}, {"num_outputs", n.Attrs.Outputs, outputs}} {
		if counted.declared != "" && counted.declared != strconv.Itoa(counted.n) {
			return c.fault(fmt.Sprintf("/nodes/%d/attrs/%s", i, counted.attr), "%q, but the node has %d", counted.declared, counted.n)
		}
	}
	if n.Op == "null" && (len(n.Inputs) > 0 || outputs != 1) {
		return c.fault(fmt.Sprintf("/nodes/%d", i), "null with %d inputs and %d outputs, expected none and one", len(n.Inputs), outputs)
	}
	if !isNop(n.Op, n.Attrs.Function) {
		return nil
	}
	if len(n.Inputs) != 1 {
		return c.fault(fmt.Sprintf("/nodes/%d/inputs", i), "%d inputs of __nop, expected one", len(n.Inputs))
	}
	if outputs != 1 {
		return c.fault(fmt.Sprintf("/nodes/%d", i), "%d outputs of __nop, expected one", outputs)
	}
	from, _ := c.entry(n.Inputs[0], "")
	to := c.g.Rows[i]
	if c.sizes[to] != c.sizes[from] {
		return c.fault(fmt.Sprintf("/nodes/%d", i), "__nop from %d bytes to %d", c.sizes[from], c.sizes[to])
	}
	c.alias[to] = c.alias[from] // from belongs to an earlier node, so its alias is resolved
	return nil
}

// isNop reports whether a node's output shares the memory of its input.
func isNop(op, function string) bool { return op == "tvm_op" && function == "__nop" }

// arguments assigns each argument the key of its object. A null node that is not an argument is a fault,
// because its contents are undefined.
func (c *tvm) arguments() error {
	named := map[string]int{} // node
	for i, node := range c.g.ArgNodes {
		where := fmt.Sprintf("/arg_nodes/%d", i)
		if node < 0 || node >= len(c.g.Nodes) {
			return c.fault(where, "there is no node %d", node)
		}
		n := &c.g.Nodes[node]
		if n.Op != "null" {
			return c.fault(where, "node %d (%s) is a %s, expected null", node, n.Name, n.Op)
		}
		if other, twice := named[n.Name]; twice {
			return c.fault(where, "the argument %s is both node %d and node %d, expected each name once", n.Name, other, node)
		}
		named[n.Name] = node
		c.inputs[c.g.Rows[node]] = c.prefix + n.Name
	}
	for i := range c.g.Nodes {
		if n := &c.g.Nodes[i]; n.Op == "null" && c.inputs[c.g.Rows[i]] == "" {
			return c.fault(fmt.Sprintf("/nodes/%d", i), "%s is a null node but not in arg_nodes, so its content is unknown", n.Name)
		}
	}
	return nil
}

// heads assigns each output the key of its object.
func (c *tvm) heads() error {
	if len(c.g.Heads) == 0 {
		return c.fault("/heads", "the list is empty, expected at least one output")
	}
	keys := map[string]int{} // entry
	for e, key := range c.inputs {
		if key != "" {
			keys[key] = e
		}
	}
	for i, head := range c.g.Heads {
		where := fmt.Sprintf("/heads/%d", i)
		e, err := c.entry(head, where)
		if err != nil {
			return err
		}
		root := c.alias[e]
		if c.inputs[root] != "" {
			return c.fault(where, "the head is an input, expected the output of a kernel")
		}
		key := c.prefix + c.g.Nodes[head[0]].Name
		if head[1] > 0 {
			key += fmt.Sprintf(".%d", head[1])
		}
		if other, known := keys[key]; known && other != e {
			return c.fault(where, "the object %s is both entry %d and entry %d of the graph, expected one", key, other, e)
		}
		keys[key] = e
		if other := c.outputs[root]; other != "" && other != key {
			c.unsupported("the output %s in the memory of the output %s", key, other)
			continue
		}
		c.outputs[root] = key
	}
	return nil
}

// sharedStorage reports memory sharing that a request cannot express: an alias of other storage, which
// may be overwritten while the alias is in use, and results in the memory of an argument.
func (c *tvm) sharedStorage() {
	argument := map[int]string{} // by storage id
	for e, key := range c.inputs {
		if key != "" {
			argument[c.storage[e]] = key
		}
	}
	for i := range c.g.Nodes {
		n := &c.g.Nodes[i]
		for e := c.g.Rows[i]; e < c.g.Rows[i+1]; e++ {
			root := c.alias[e]
			if c.storage[e] != c.storage[root] {
				c.unsupported("__nop from storage %d to storage %d (node %d, %s)", c.storage[root], c.storage[e], i, n.Name)
			}
			if key := argument[c.storage[root]]; key != "" && c.inputs[root] == "" {
				c.unsupported("%s (node %d) in the memory of the input %s", n.Name, i, key)
			}
		}
	}
}

// unwritten reports entries that are used although no kernel writes them.
func (c *tvm) unwritten() {
	check := func(ref []int, by string) {
		e, _ := c.entry(ref, "") // checked before
		if e = c.alias[e]; c.inputs[e] == "" && !c.written[e] {
			node, _ := slices.BinarySearch(c.g.Rows, e+1)
			n := &c.g.Nodes[node-1]
			c.unsupported("output %d of %s (node %d), which %s uses: %s lists no kernel of %s with it as an output",
				e-c.g.Rows[node-1], n.Name, node-1, by, c.launchSource.name, n.Attrs.Function)
		}
	}
	for _, n := range c.g.Nodes {
		for _, ref := range n.Inputs {
			check(ref, n.Name)
		}
	}
	for _, head := range c.g.Heads {
		check(head, "the request")
	}
}

// memory returns the index of an entry's buffer: the object's, or one shared by all entries with its
// storage ID.
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
	case n.Op == "null" || isNop(n.Op, n.Attrs.Function):
		return nil
	case n.Op != "tvm_op":
		c.unsupported("the operation %s (node %d)", n.Op, i)
		return nil
	}
	kernels, known := c.launches[n.Attrs.Function]
	if !known {
		c.unsupported("%s has no kernels for %s", c.launchSource.name, n.Attrs.Function)
		return nil
	}
	for j := range kernels {
		k := kgraph.Kernel{Name: kernels[j].Name, Shared: kernels[j].Shared}
		where := fmt.Sprintf("/%s/%d", kgraph.Pointer(n.Attrs.Function), j)
		for _, shape := range []struct {
			key  string
			dims []int
			to   *[3]int
		}{{"grid", kernels[j].Grid, &k.Grid}, {"block", kernels[j].Block, &k.Block}} {
			if copy(shape.to[:], shape.dims); shape.dims != nil && len(shape.dims) != 3 {
				return c.launchSource.fault(where+"/"+shape.key, "%d values, expected 3", len(shape.dims))
			}
		}
		for a, form := range kernels[j].Args {
			arg, err := c.arg(i, form)
			if err != nil {
				return c.launchSource.fault(fmt.Sprintf("%s/args/%d", where, a), "%v", err)
			}
			k.Args = append(k.Args, arg)
		}
		c.r.Kernels = append(c.r.Kernels, k)
	}
	return nil
}

// arg converts an argument of the launch file: {"input":0}, {"output":0} or a number such as {"i32":64}.
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
			c.written[e] = true
			return kgraph.Arg{Type: "buffer", Buffer: c.memory(e)}, nil
		case "f32":
			if f := float32(v); math.IsInf(float64(f), 0) || f == 0 && v != 0 {
				return kgraph.Arg{}, fmt.Errorf("%v is not a valid %s", v, key)
			}
			return kgraph.Arg{Type: key, Value: binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(v)))}, nil
		case "f64":
			return kgraph.Arg{Type: key, Value: binary.LittleEndian.AppendUint64(nil, math.Float64bits(v))}, nil
		case "i32", "u32":
			if v != math.Trunc(v) || v < math.MinInt32 || v > math.MaxUint32 || key == "u32" && v < 0 || key == "i32" && v > math.MaxInt32 {
				return kgraph.Arg{}, fmt.Errorf("%v is not a valid %s", v, key)
			}
			return kgraph.Arg{Type: key, Value: binary.LittleEndian.AppendUint32(nil, uint32(int64(v)))}, nil
		case "i64", "u64":
			if v != math.Trunc(v) || math.Abs(v) >= 1<<53 || key == "u64" && v < 0 {
				return kgraph.Arg{}, fmt.Errorf("%v is not a whole number that fits %s and that JSON represents exactly", v, key)
			}
			return kgraph.Arg{Type: key, Value: binary.LittleEndian.AppendUint64(nil, uint64(int64(v)))}, nil
		default:
			return kgraph.Arg{}, fmt.Errorf("%q, expected input, output, i32, u32, i64, u64, f32 or f64", key)
		}
	}
	return kgraph.Arg{}, nil
}
