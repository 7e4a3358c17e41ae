// Package lower converts graphs of other tools to requests of gfaas-kerneld: lists of operations and ONNX
// models, which use the built-in kernels (List, ONNX), and graphs of TVM's graph executor, which use the kernels that TVM
// compiled (TVM). pkg/command/kerneld calls it for gfaas-kerneld import.
package lower

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// UnsupportedError lists everything that cannot be lowered.
type UnsupportedError struct{ Features []string }

func (e *UnsupportedError) Error() string {
	return "not supported: " + strings.Join(e.Features, "; ")
}

// mostElements limits the elements of a tensor: kernels count them with 32-bit integers.
const mostElements = 1<<31 - 1

// elements returns the number of elements of a shape, or 0 if the shape is invalid or too large.
func elements(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		if d < 1 || d > mostElements || n > mostElements/d {
			return 0
		}
		n *= d
	}
	return n
}

// builder builds a request.
type builder struct {
	r      kgraph.Request
	places map[string]int // name of a buffer to its index
}

func newBuilder() *builder {
	return &builder{r: kgraph.Request{Iterations: 1}, places: map[string]int{}}
}

// buffer returns the index of the buffer with buf's name, and adds buf if there is none.
func (b *builder) buffer(buf kgraph.Buffer) int {
	if i, there := b.places[buf.Name]; there {
		return i
	}
	i := len(b.r.Buffers)
	b.places[buf.Name] = i
	b.r.Buffers = append(b.r.Buffers, buf)
	return i
}

// finish validates the request in the same way as the daemon, and returns it.
func (b *builder) finish() (*kgraph.Request, error) {
	text, err := b.r.Encode()
	if err != nil {
		return nil, err
	}
	r, problems := kgraph.Parse(text)
	if len(problems) == 0 {
		own := *r
		own.Kernels = slices.Clone(r.Kernels)
		problems = own.Check(kgraph.World{Files: true})
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("the resulting request is invalid: %w", problems[0])
	}
	return r, nil
}
