package lower

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// operations is a list of them: each tensor is an input, or what one operation
// before its first use makes.
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

// List lowers a list of operations to built-in kernels. Tensors that no operation
// makes are objects, under their key or prefix and name; so are the outputs. The
// error is an *UnsupportedError where an operation, or its shapes, are none of the
// built-ins'.
func List(r io.Reader, name, prefix string) (*kgraph.Request, error) {
	var l operations
	src, err := decode(r, name, true, &l)
	if err != nil {
		return nil, err
	}
	if l.Version != 1 {
		return nil, src.fault("/version", "%d, expected 1", l.Version)
	}
	c := &lists{operations: l, builder: newBuilder(), prefix: prefix, made: map[string]int{}}
	if where, what := c.check(); what != "" {
		return nil, src.fault(where, "%s", what)
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
	*builder
	prefix      string
	made        map[string]int // by which node
	unsupported []string
}

// check finds what is wrong with the names and shapes.
func (c *lists) check() (where, what string) {
	names := make([]string, 0, len(c.Tensors))
	for name := range c.Tensors {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		t, at := c.Tensors[name], "/tensors/"+kgraph.Pointer(name)
		switch {
		case t.DType != "f32":
			return at + "/dtype", fmt.Sprintf("%q, expected f32", t.DType)
		case len(t.Shape) == 0 || elements(t.Shape) == 0:
			return at + "/shape", fmt.Sprintf("%v, expected sizes of 1 or more, at most %d elements", t.Shape, int64(mostElements))
		case !kgraph.ValidKey(c.key(name)):
			return at + "/key", fmt.Sprintf("%q is no key", c.key(name))
		}
	}
	known := func(name, at string) (string, string) {
		if _, there := c.Tensors[name]; !there {
			return at, fmt.Sprintf("there is no tensor %q", name)
		}
		return "", ""
	}
	for i, n := range c.Nodes {
		at := fmt.Sprintf("/nodes/%d", i)
		if where, what = known(n.Output, at+"/output"); what != "" {
			return where, what
		}
		if _, twice := c.made[n.Output]; twice {
			return at + "/output", fmt.Sprintf("%q is made twice", n.Output)
		}
		c.made[n.Output] = i
	}
	for i, n := range c.Nodes {
		for j, in := range n.Inputs {
			at := fmt.Sprintf("/nodes/%d/inputs/%d", i, j)
			if where, what = known(in, at); what != "" {
				return where, what
			}
			if by, is := c.made[in]; is && by >= i {
				return at, fmt.Sprintf("%q is made by node %d only: operations are in their order", in, by)
			}
		}
	}
	for i, name := range c.Inputs {
		at := fmt.Sprintf("/inputs/%d", i)
		if where, what = known(name, at); what != "" {
			return where, what
		}
		if _, is := c.made[name]; is {
			return at, fmt.Sprintf("%q is an input and is made by an operation", name)
		}
	}
	for i, name := range c.Outputs {
		at := fmt.Sprintf("/outputs/%d", i)
		if where, what = known(name, at); what != "" {
			return where, what
		}
		if _, is := c.made[name]; !is {
			return at, fmt.Sprintf("no operation makes %q", name)
		}
	}
	if len(c.Outputs) == 0 {
		return "/outputs", "there are none, expected at least one"
	}
	return "", ""
}

func (c *lists) key(name string) string {
	if key := c.Tensors[name].Key; key != "" {
		return key
	}
	return c.prefix + name
}

// tensor is the buffer of a tensor.
func (c *lists) tensor(name string) int {
	buf := kgraph.Buffer{Name: name, Kind: kgraph.Temporary, Size: 4 * elements(c.Tensors[name].Shape)}
	_, made := c.made[name]
	switch {
	case !made:
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
		// A row for each row of a: the built-in knows no other way.
		width := elements(sb)
		for r := range rows(sa, sb) {
			c.launch("vadd", c.at(a, 4*r*width), c.at(b, 0), c.at(out, 4*r*width), i32(width))
		}
	default:
		c.unsupported = append(c.unsupported, fmt.Sprintf("%s of %v and %v to %v (node %d)", n.Op, sa, sb, so, i))
	}
}

// rows is to how many rows of a shape another is added; 0 when it cannot be.
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

// launch adds a built-in kernel.
func (c *lists) launch(name string, args ...kgraph.Arg) {
	if len(c.r.Modules) == 0 {
		c.r.Modules = []kgraph.Module{{Name: kgraph.Blas, Builtin: kgraph.Blas}}
	}
	c.r.Kernels = append(c.r.Kernels, kgraph.Kernel{Name: name, Args: args})
}
