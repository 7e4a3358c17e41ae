package lower

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// operations is the JSON form of a list of operations. Each tensor is an input, or the output of exactly
// one operation that precedes its uses.
type operations struct {
	Version int               `json:"version"`
	Tensors map[string]tensor `json:"tensors"`
	Inputs  []string          `json:"inputs"`
	Outputs []string          `json:"outputs"`
	Nodes   []operation       `json:"nodes"`
}

type tensor struct {
	Shape []int64 `json:"shape"`
	DType string  `json:"dtype"`
	Key   string  `json:"key,omitempty"`
}

type operation struct {
	Op     string   `json:"op"`
	Inputs []string `json:"inputs"`
	Output string   `json:"output"`
}

// List lowers a list of operations to built-in kernels. Tensors that no operation produces are objects,
// and so are the outputs. The key of an object is the tensor's key, or prefix and the tensor's name. The
// error is an *UnsupportedError if the built-ins do not support an operation or its shapes.
func List(r io.Reader, name, prefix string) (*kgraph.Request, error) {
	var l operations
	src, err := decode(r, name, strict, &l)
	if err != nil {
		return nil, err
	}
	if l.Version != 1 {
		return nil, src.fault("/version", "%d, expected 1", l.Version)
	}
	return lowerList(l, src, prefix)
}

func lowerList(l operations, src *source, prefix string) (*kgraph.Request, error) {
	c := &lists{operations: l, source: src, builder: newBuilder(), prefix: prefix, producer: map[string]int{}, views: map[string]string{}}
	if err := c.check(); err != nil {
		return nil, err
	}
	for i := range l.Nodes {
		c.node(i)
	}
	if len(c.unsupported) > 0 {
		return nil, &UnsupportedError{c.unsupported}
	}
	return c.finish()
}

type lists struct {
	operations
	*source
	*builder
	prefix      string
	producer    map[string]int    // tensor to the index of the operation that produces it
	views       map[string]string // tensor to the one with the same elements in the same buffer
	unsupported []string
}

// check returns an error if names or shapes are invalid. It sets c.producer.
func (c *lists) check() error {
	for _, name := range slices.Sorted(maps.Keys(c.Tensors)) {
		t, at := c.Tensors[name], "/tensors/"+kgraph.Pointer(name)
		switch {
		case t.DType != "f32":
			return c.fault(at+"/dtype", "%q, expected f32", t.DType)
		case len(t.Shape) == 0 || elements(t.Shape) == 0:
			return c.fault(at+"/shape", "%v, expected sizes of 1 or more, at most %d elements", t.Shape, int64(mostElements))
		case !kgraph.ValidKey(c.key(name)):
			return c.fault(at+"/key", "invalid key %q", c.key(name))
		}
	}
	for i, n := range c.Nodes {
		at := fmt.Sprintf("/nodes/%d/output", i)
		if err := c.checkName(n.Output, at); err != nil {
			return err
		}
		if _, twice := c.producer[n.Output]; twice {
			return c.fault(at, "%q is the output of two operations", n.Output)
		}
		c.producer[n.Output] = i
	}
	for i, n := range c.Nodes {
		for j, in := range n.Inputs {
			at := fmt.Sprintf("/nodes/%d/inputs/%d", i, j)
			if err := c.checkName(in, at); err != nil {
				return err
			}
			if by, produced := c.producer[in]; produced && by >= i {
				return c.fault(at, "%q is only produced by node %d: operations must be listed in the order in which they run", in, by)
			}
		}
	}
	for i, name := range c.Inputs {
		at := fmt.Sprintf("/inputs/%d", i)
		if err := c.checkName(name, at); err != nil {
			return err
		}
		if _, produced := c.producer[name]; produced {
			return c.fault(at, "%q is an input, but an operation produces it", name)
		}
	}
	for i, name := range c.Outputs {
		at := fmt.Sprintf("/outputs/%d", i)
		if err := c.checkName(name, at); err != nil {
			return err
		}
		if _, produced := c.producer[name]; !produced {
			return c.fault(at, "no operation produces %q", name)
		}
	}
	if len(c.Outputs) == 0 {
		return c.fault("/outputs", "the list is empty, expected at least one output")
	}
	return nil
}

// checkName returns an error at a place unless there is a tensor with that name.
func (c *lists) checkName(name, at string) error {
	if _, known := c.Tensors[name]; !known {
		return c.fault(at, "there is no tensor %q", name)
	}
	return nil
}

func (c *lists) key(name string) string {
	if key := c.Tensors[name].Key; key != "" {
		return key
	}
	return c.prefix + name
}

// tensor returns the index of a tensor's buffer, which it adds if necessary.
func (c *lists) tensor(name string) int {
	for of, is := c.views[name]; is; of, is = c.views[name] {
		name = of
	}
	buf := kgraph.Buffer{Name: name, Kind: kgraph.Temporary, Size: 4 * elements(c.Tensors[name].Shape)}
	_, produced := c.producer[name]
	switch {
	case !produced:
		buf.Kind, buf.Key = kgraph.Input, c.key(name)
	case slices.Contains(c.Outputs, name):
		buf.Kind, buf.Key = kgraph.Output, c.key(name)
	}
	return c.buffer(buf)
}

// node lowers one operation.
func (c *lists) node(i int) {
	n := c.Nodes[i]
	shape := func(name string) []int64 { return c.Tensors[name].Shape }
	if n.Op == "Reshape" && len(n.Inputs) == 1 && elements(shape(n.Inputs[0])) == elements(shape(n.Output)) {
		c.reshape(n.Inputs[0], n.Output)
		return
	}
	if n.Op == "Relu" && len(n.Inputs) == 1 && slices.Equal(shape(n.Inputs[0]), shape(n.Output)) {
		c.launch("relu", c.at(n.Inputs[0], 0), c.at(n.Output, 0), i32(elements(shape(n.Output))))
		return
	}
	if len(n.Inputs) != 2 || n.Op != "MatMul" && n.Op != "Add" {
		c.unsupported = append(c.unsupported, fmt.Sprintf("%s of %d inputs (node %d)", n.Op, len(n.Inputs), i))
		return
	}
	a, b, out := n.Inputs[0], n.Inputs[1], n.Output
	sa, sb, so := shape(a), shape(b), shape(out)
	switch {
	case n.Op == "MatMul" && len(sa) == 2 && len(sb) == 2 && sa[1] == sb[0] && slices.Equal(so, []int64{sa[0], sb[1]}):
		c.launch("sgemm", c.at(a, 0), c.at(b, 0), c.at(out, 0), i32(sa[0]), i32(sb[1]), i32(sa[1]))
	case n.Op == "Add" && slices.Equal(sa, sb) && slices.Equal(sa, so):
		c.launch("vadd", c.at(a, 0), c.at(b, 0), c.at(out, 0), i32(elements(sa)))
	case n.Op == "Add" && slices.Equal(sa, so) && rows(sa, sb) > 0:
		// One launch for each row of a, because vadd cannot broadcast.
		width := elements(sb)
		for r := range rows(sa, sb) {
			c.launch("vadd", c.at(a, 4*r*width), c.at(b, 0), c.at(out, 4*r*width), i32(width))
		}
	default:
		c.unsupported = append(c.unsupported, fmt.Sprintf("%s of %v and %v to %v (node %d)", n.Op, sa, sb, so, i))
	}
}

// reshape makes a tensor the same buffer as another one. An output needs a buffer of its own: it starts with zeros, to
// which the elements are added.
func (c *lists) reshape(in, out string) {
	if !slices.Contains(c.Outputs, out) {
		c.views[out] = in
		return
	}
	one := kgraph.Arg{Type: "f32", Value: binary.LittleEndian.AppendUint32(nil, math.Float32bits(1))}
	c.launch("saxpy", one, c.at(in, 0), c.at(out, 0), i32(elements(c.Tensors[out].Shape)))
}

// rows returns to how many rows of shape a Add must add b; 0 if b cannot be broadcast to a.
func rows(a, b []int64) int64 {
	for len(b) > 1 && b[0] == 1 {
		b = b[1:]
	}
	if len(a) < 2 || len(b) != 1 || b[0] != a[len(a)-1] || elements(a)/b[0] > kgraph.MaxKernels {
		return 0
	}
	return elements(a) / b[0]
}

func (c *lists) at(tensor string, offset int64) kgraph.Arg {
	return kgraph.Arg{Type: "buffer", Buffer: c.tensor(tensor), Offset: offset}
}

func i32(n int64) kgraph.Arg {
	return kgraph.Arg{Type: "i32", Value: binary.LittleEndian.AppendUint32(nil, uint32(n))}
}

// launch adds the launch of a built-in kernel.
func (c *lists) launch(name string, args ...kgraph.Arg) {
	if len(c.r.Modules) == 0 {
		c.r.Modules = []kgraph.Module{{Name: kgraph.Blas, Builtin: kgraph.Blas}}
	}
	c.r.Kernels = append(c.r.Kernels, kgraph.Kernel{Name: name, Args: args})
}
