// Package lower turns graphs of other tools into requests of kernels: lists of
// operations, by the built-in kernels, and the graphs that TVM's runtime executes,
// by the kernels that it compiled.
package lower

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// UnsupportedError names all that cannot be lowered.
type UnsupportedError struct{ What []string }

func (e *UnsupportedError) Error() string {
	return "not supported: " + strings.Join(e.What, "; ")
}

// mostElements is the most that a kernel's 32-bit numbers count.
const mostElements = 1<<31 - 1

// elements is how many a shape has; 0 when it is no shape.
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

// builder puts a request together.
type builder struct {
	r      kgraph.Request
	places map[string]int // of buffers, by name
}

func newBuilder() *builder {
	return &builder{r: kgraph.Request{Iterations: 1}, places: map[string]int{}}
}

// buffer is the place of a buffer, a new one if there is none of that name.
func (b *builder) buffer(buf kgraph.Buffer) int {
	if i, there := b.places[buf.Name]; there {
		return i
	}
	i := len(b.r.Buffers)
	b.places[buf.Name] = i
	b.r.Buffers = append(b.r.Buffers, buf)
	return i
}

// finish checks what came of it as the daemon would.
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
		return nil, fmt.Errorf("the request would be wrong: %w", problems[0])
	}
	return r, nil
}
