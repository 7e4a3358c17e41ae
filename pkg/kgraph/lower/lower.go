// Package lower turns graphs of other tools into requests of kernels: lists of
// operations, by the built-in kernels, and the graphs that TVM's runtime executes,
// by the kernels that it compiled.
package lower

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/textfile"
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

// decode reads one JSON value, strictly where nothing else may be in it. A key that
// is there twice is a fault.
func decode(r io.Reader, name string, strict bool, v any) error {
	const most = 64 << 20
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if len(data) > most {
		return &textfile.Fault{File: name, Line: 1, What: fmt.Sprintf("more than %d bytes", most)}
	}
	at := func(offset int64, err error) error {
		return &textfile.Fault{File: name, Line: 1 + bytes.Count(data[:min(offset, int64(len(data)))], []byte("\n")), What: err.Error()}
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := doubled(dec, 0); err != nil {
		return at(dec.InputOffset(), err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return at(dec.InputOffset(), errors.New("there is more after it, expected one JSON object"))
	}
	dec = json.NewDecoder(bytes.NewReader(data))
	if strict {
		dec.DisallowUnknownFields()
	}
	if err := dec.Decode(v); err != nil {
		return at(dec.InputOffset(), err)
	}
	return nil
}

// doubled looks for a key that is there twice.
func doubled(dec *json.Decoder, depth int) error {
	tok, err := dec.Token()
	switch {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case depth > 32:
		return errors.New("nested too deeply")
	}
	switch tok {
	case json.Delim('{'):
		seen := map[string]bool{}
		for dec.More() {
			tok, err := dec.Token()
			if err != nil {
				return err
			}
			key, _ := tok.(string)
			if seen[key] {
				return fmt.Errorf("the key %q is there twice, expected once", key)
			}
			seen[key] = true
			if err := doubled(dec, depth+1); err != nil {
				return err
			}
		}
	case json.Delim('['):
		for dec.More() {
			if err := doubled(dec, depth+1); err != nil {
				return err
			}
		}
	default:
		return nil
	}
	_, err = dec.Token()
	return err
}
