package lower

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// ONNX lowers an ONNX model to built-in kernels, through a list of operations. It returns the request, and the
// model's parameters under the keys from which the request reads them. dims has the sizes of named dimensions,
// like batch. A key is prefix and the name of the tensor, with underscores in place of characters that keys cannot
// have. The error is an *UnsupportedError if the built-ins do not support the model.
func ONNX(r io.Reader, prefix string, dims map[string]int64) (*kgraph.Request, []Param, error) {
	g, err := readONNX(r)
	if err != nil {
		return nil, nil, err
	}
	c := &onnxLists{prefix: prefix, dims: dims, params: map[string]*onnxTensor{}, turned: map[string]string{}, unknown: map[string]bool{}, keys: map[string]bool{},
		list: operations{Version: 1, Tensors: map[string]tensor{}}}
	if err := c.declare(g); err != nil {
		return nil, nil, err
	}
	for i, n := range g.nodes {
		err := c.node(n)
		if err == nil {
			continue
		}
		for _, name := range n.outputs {
			c.unknown[name] = true
		}
		if !errors.Is(err, errUnknown) { // otherwise an earlier node has the fault
			c.unsupported = append(c.unsupported, fmt.Sprintf("%s (node %d, %q): %v", n.op, i, n.name, err))
		}
	}
	if len(c.unsupported) > 0 {
		return nil, nil, &UnsupportedError{c.unsupported}
	}
	return c.finish()
}

// onnxLists converts an ONNX graph to a list of operations.
type onnxLists struct {
	prefix      string
	dims        map[string]int64
	list        operations
	params      map[string]*onnxTensor // initializers and constants, 32-bit floats
	turned      map[string]string      // name of a parameter to that of its transpose
	used        []string               // names of the parameters that the list uses
	unknown     map[string]bool        // outputs of nodes that are not supported
	keys        map[string]bool        // keys in use
	unsupported []string
}

// errUnknown reports that a node reads the output of a node that is not supported.
var errUnknown = errors.New("unknown shape")

// declare adds the parameters, the inputs and the outputs.
func (c *onnxLists) declare(g *onnxGraph) error {
	for _, t := range g.initializers {
		if err := c.param(t.name, t); err != nil {
			return fmt.Errorf("initializer %q: %w", t.name, err)
		}
	}
	for _, v := range g.inputs {
		if c.params[v.name] != nil {
			continue // the initializer is the input's default value
		}
		if v.elemType != onnxFloat {
			return &UnsupportedError{[]string{fmt.Sprintf("the type %d of the input %q, expected 32-bit floats", v.elemType, v.name)}}
		}
		var shape []int64
		for _, d := range v.dims {
			size := d.size
			if size == 0 {
				size = c.dims[d.param]
			}
			if size == 0 && d.param == "" {
				return fmt.Errorf("a dimension of the input %q has neither a size nor a name", v.name)
			}
			if size == 0 {
				return fmt.Errorf("the dimension %q of the input %q has no size: give one, like %[1]s=1", d.param, v.name)
			}
			shape = append(shape, size)
		}
		if elements(shape) == 0 || len(shape) == 0 {
			return fmt.Errorf("the shape of the input %q is %v, expected sizes of 1 or more", v.name, shape)
		}
		c.add(v.name, shape)
		c.list.Inputs = append(c.list.Inputs, v.name)
	}
	for _, v := range g.outputs {
		c.list.Outputs = append(c.list.Outputs, v.name)
	}
	if len(c.list.Outputs) == 0 {
		return fmt.Errorf("%w: the graph has no outputs", errNotONNX)
	}
	return nil
}

// param adds a tensor whose elements are in the model. It ignores tensors of other types than 32-bit floats: nodes that
// use them are not supported.
func (c *onnxLists) param(name string, t *onnxTensor) error {
	switch n := elements(t.dims); {
	case t.elemType != onnxFloat:
		return nil
	case t.external:
		return errors.New("its data is in another file, expected it in the model")
	case n == 0 || len(t.dims) == 0 || int64(len(t.floats)) != 4*n:
		return fmt.Errorf("%d bytes of data for the shape %v", len(t.floats), t.dims)
	case c.params[name] != nil:
		return errors.New("given twice, expected once")
	}
	c.params[name] = t
	return nil
}

// add adds a tensor to the list.
func (c *onnxLists) add(name string, shape []int64) {
	c.list.Tensors[name] = tensor{Shape: shape, DType: "f32", Key: c.key(name)}
}

// key returns an unused key for a tensor.
func (c *onnxLists) key(name string) string {
	base := c.prefix + strings.TrimLeft(strings.Map(func(r rune) rune {
		if kgraph.ValidKey("a" + string(r)) {
			return r
		}
		return '_'
	}, name), "._/-")
	const longest = kgraph.MaxName - 10 // leaves room for a number
	base = base[:min(len(base), longest)]
	key := base
	for n := 2; c.keys[key] || key == c.prefix; n++ {
		key = fmt.Sprintf("%s_%d", base, n)
	}
	c.keys[key] = true
	return key
}

// shape returns the shape of an input of a node. It adds a parameter to the list when a node first uses it.
func (c *onnxLists) shape(name string) ([]int64, error) {
	if t, known := c.list.Tensors[name]; known {
		return t.Shape, nil
	}
	if t := c.params[name]; t != nil {
		c.add(name, t.dims)
		c.used = append(c.used, name)
		return t.dims, nil
	}
	if c.unknown[name] {
		return nil, errUnknown
	}
	return nil, fmt.Errorf("no earlier node, input or initializer gives the tensor %q of 32-bit floats", name)
}

// emit adds an operation and its output.
func (c *onnxLists) emit(op, output string, shape []int64, inputs ...string) error {
	if _, twice := c.list.Tensors[output]; twice || output == "" || elements(shape) == 0 {
		return fmt.Errorf("the output %q exists, has no name or is too large (%v)", output, shape)
	}
	c.add(output, shape)
	c.list.Nodes = append(c.list.Nodes, operation{Op: op, Inputs: inputs, Output: output})
	return nil
}

// onnxInputs gives the least and the greatest number of inputs of the supported nodes.
var onnxInputs = map[string][2]int{"Constant": {0, 0}, "Identity": {1, 1}, "Flatten": {1, 1}, "Relu": {1, 1}, "MatMul": {2, 2}, "Add": {2, 2}, "Gemm": {2, 3}}

// node converts a node to operations.
func (c *onnxLists) node(n *onnxNode) error {
	limits, known := onnxInputs[n.op]
	if !known || n.domain != "" && n.domain != "ai.onnx" {
		return errors.New("expected Add, Constant, Flatten, Gemm, Identity, MatMul or Relu")
	}
	if len(n.inputs) < limits[0] || len(n.inputs) > limits[1] || len(n.outputs) != 1 {
		return fmt.Errorf("%d inputs and %d outputs", len(n.inputs), len(n.outputs))
	}
	out := n.outputs[0]
	if n.op == "Constant" {
		if a := n.attributes["value"]; a != nil && a.tensor != nil {
			return c.param(out, a.tensor)
		}
		return errors.New("it has no tensor as its value")
	}
	shapes := make([][]int64, len(n.inputs))
	for i, name := range n.inputs {
		if i == 2 && name == "" {
			n.inputs, shapes = n.inputs[:2], shapes[:2] // an optional input that is missing
			break
		}
		var err error
		if shapes[i], err = c.shape(name); err != nil {
			return err
		}
	}
	switch n.op {
	case "Identity":
		return c.emit("Reshape", out, shapes[0], n.inputs...)
	case "Flatten":
		return c.flatten(n, shapes[0])
	case "Relu":
		return c.emit("Relu", out, shapes[0], n.inputs...)
	case "MatMul":
		return c.product(out, n.inputs[0], n.inputs[1], shapes[0], shapes[1])
	case "Add":
		return c.sum(out, n.inputs[0], n.inputs[1], shapes[0], shapes[1])
	}
	return c.gemm(n, shapes)
}

// flatten makes a matrix of a tensor: the dimensions before the axis, and those from it on.
func (c *onnxLists) flatten(n *onnxNode, shape []int64) error {
	axis := 1
	if a := n.attributes["axis"]; a != nil {
		axis = int(a.i)
	}
	if axis < 0 {
		axis += len(shape)
	}
	if axis < 0 || axis > len(shape) {
		return fmt.Errorf("the axis %d of the shape %v", axis, shape)
	}
	return c.emit("Reshape", n.outputs[0], []int64{elements(shape[:axis]), elements(shape[axis:])}, n.inputs...)
}

func (c *onnxLists) product(out, a, b string, sa, sb []int64) error {
	if len(sa) != 2 || len(sb) != 2 || sa[1] != sb[0] {
		return fmt.Errorf("the shapes %v and %v, expected two matrices", sa, sb)
	}
	return c.emit("MatMul", out, []int64{sa[0], sb[1]}, a, b)
}

// sum adds tensors of the same shape, or a vector to each row of the other tensor.
func (c *onnxLists) sum(out, a, b string, sa, sb []int64) error {
	if elements(sa) < elements(sb) {
		a, b, sa, sb = b, a, sb, sa
	}
	if !slices.Equal(sa, sb) && rows(sa, sb) == 0 {
		return fmt.Errorf("the shapes %v and %v, expected the same, or a vector as long as a row", sa, sb)
	}
	return c.emit("Add", out, sa, a, b)
}

// gemm converts A·B or A·B + C. If B is transposed, it must be a parameter, which is stored transposed.
func (c *onnxLists) gemm(n *onnxNode, shapes [][]int64) error {
	for _, name := range []string{"alpha", "beta"} {
		if a := n.attributes[name]; a != nil && a.f != 1 {
			return fmt.Errorf("%s is %v, expected 1", name, a.f)
		}
	}
	flag := func(name string) bool { return n.attributes[name] != nil && n.attributes[name].i != 0 }
	a, b, sb := n.inputs[0], n.inputs[1], shapes[1]
	if flag("transA") {
		return errors.New("transA is 1, expected 0")
	}
	if flag("transB") {
		var err error
		if b, sb, err = c.transposed(b); err != nil {
			return err
		}
	}
	out, product := n.outputs[0], n.outputs[0]
	if len(shapes) == 3 {
		product = out + "/product"
	}
	if err := c.product(product, a, b, shapes[0], sb); err != nil || len(shapes) < 3 {
		return err
	}
	shape := []int64{shapes[0][0], sb[1]}
	if elements(shapes[2]) > elements(shape) {
		return fmt.Errorf("the shapes %v and %v of the product and C", shape, shapes[2])
	}
	return c.sum(out, product, n.inputs[2], shape, shapes[2])
}

// transposed returns a parameter that is the transpose of another one.
func (c *onnxLists) transposed(name string) (string, []int64, error) {
	t := c.params[name]
	if t == nil || len(t.dims) != 2 {
		return "", nil, errors.New("transB is 1, and B is not a matrix in the model")
	}
	other, known := c.turned[name]
	if !known {
		for other = name + "/transposed"; c.params[other] != nil || c.list.Tensors[other].DType != ""; {
			other += "'"
		}
		c.turned[name] = other
		rows, columns := int(t.dims[0]), int(t.dims[1])
		turned := &onnxTensor{dims: []int64{t.dims[1], t.dims[0]}, elemType: onnxFloat, floats: make([]byte, len(t.floats))}
		for i := range rows {
			for j := range columns {
				copy(turned.floats[4*(j*rows+i):], t.floats[4*(i*columns+j):4*(i*columns+j)+4])
			}
		}
		c.params[other] = turned
	}
	shape, err := c.shape(other)
	return other, shape, err
}

// finish lowers the list.
func (c *onnxLists) finish() (*kgraph.Request, []Param, error) {
	read := map[string]bool{}
	for _, n := range c.list.Nodes {
		for _, name := range n.Inputs {
			read[name] = true
		}
	}
	var params []Param
	for _, name := range c.used {
		if read[name] { // not only as the source of a transpose
			params = append(params, Param{c.list.Tensors[name].Key, c.params[name].floats})
		} else {
			delete(c.list.Tensors, name)
		}
	}
	for _, name := range c.list.Outputs {
		if !slices.ContainsFunc(c.list.Nodes, func(n operation) bool { return n.Output == name }) {
			return nil, nil, &UnsupportedError{[]string{fmt.Sprintf("the output %q, which no supported node produces", name)}}
		}
	}
	request, err := lowerList(c.list, &source{name: "the list of operations"}, "")
	return request, params, err
}
