package lower

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// Param is one parameter of a model: what it is called, and its bytes.
type Param struct {
	Name string
	Data []byte
}

// The marks of TVM's parameter files: a list of named arrays, and an array.
const (
	paramsMagic = 0xF7E58D4F05049CB7
	arrayMagic  = 0xDD5E40F096B4A13F
)

// Params reads a file of parameters as TVM writes them (save_param_dict).
func Params(r io.Reader) ([]Param, error) {
	p := &params{r: r}
	if p.u64() != paramsMagic || p.err != nil {
		return nil, errors.New("no file of TVM parameters")
	}
	p.u64() // reserved
	names := make([]string, 0, 16)
	for range p.count(1 << 20) {
		names = append(names, string(p.bytes(p.count(1<<16))))
	}
	if n := p.count(1 << 20); p.err == nil && n != int64(len(names)) {
		p.err = fmt.Errorf("%d names and %d arrays", len(names), n)
	}
	var out []Param
	seen := map[string]bool{}
	for _, name := range names {
		if p.err == nil && seen[name] {
			p.err = fmt.Errorf("the parameter %q is there twice, expected once", name)
		}
		if p.err != nil {
			break
		}
		seen[name] = true
		out = append(out, Param{name, p.array()})
	}
	if p.err != nil {
		return nil, fmt.Errorf("TVM parameters, byte %d: %w", p.at, p.err)
	}
	return out, nil
}

// CheckParams reports a parameter that cannot be stored, under prefix and its name, as
// an object that the request reads. Parameters that the request does not name are
// none of its concern.
func CheckParams(params []Param, r *kgraph.Request, prefix string) error {
	buffers := map[string]*kgraph.Buffer{} // by key
	for i := range r.Buffers {
		if b := &r.Buffers[i]; b.Key != "" {
			buffers[b.Key] = b
		}
	}
	for _, p := range params {
		key := prefix + p.Name
		if !kgraph.ValidKey(key) {
			return fmt.Errorf("the parameter %q cannot be a key", key)
		}
		switch b := buffers[key]; {
		case b == nil:
		case !b.Reads():
			return fmt.Errorf("the parameter %q is an output of the graph, expected an argument", p.Name)
		case b.Size != int64(len(p.Data)):
			return fmt.Errorf("the parameter %q has %d bytes, but the graph's argument has %d", p.Name, len(p.Data), b.Size)
		}
	}
	return nil
}

// params reads numbers and keeps the first error.
type params struct {
	r   io.Reader
	at  int64 // bytes read
	err error
}

func (p *params) bytes(n int64) []byte {
	if p.err != nil {
		return nil
	}
	// Whatever the file says, no more is taken than comes.
	data, err := io.ReadAll(io.LimitReader(p.r, n))
	if err == nil && int64(len(data)) < n {
		err = io.ErrUnexpectedEOF
	}
	p.at += int64(len(data))
	p.err = err
	return data
}

func (p *params) number(size int64) uint64 {
	var b [8]byte
	copy(b[:], p.bytes(size))
	return binary.LittleEndian.Uint64(b[:])
}

func (p *params) u64() uint64 { return p.number(8) }

// count reads a number of things.
func (p *params) count(most uint64) int64 {
	n := p.u64()
	if n > most && p.err == nil {
		p.err = fmt.Errorf("%d is too many", n)
	}
	if p.err != nil {
		return 0
	}
	return int64(n)
}

// array reads one array: its device, type and shape, and its bytes.
func (p *params) array() []byte {
	if p.u64() != arrayMagic && p.err == nil {
		p.err = errors.New("an array begins wrongly")
	}
	p.u64()     // reserved
	p.number(8) // device
	dims := p.number(4)
	dtype := p.number(4) // its kind, its bits and, in two bytes, its lanes
	bits, lanes := dtype>>8&0xff, dtype>>16
	switch {
	case p.err != nil:
	case dims > 32:
		p.err = fmt.Errorf("an array of %d dimensions", dims)
	case lanes != 1: // TVM itself writes and reads a part of such an array
		p.err = fmt.Errorf("an array of vectors of %d lanes, expected 1", lanes)
	}
	if p.err != nil {
		return nil
	}
	shape := []int64{}
	for range dims {
		shape = append(shape, int64(p.u64()))
	}
	n := elements(shape)
	if len(shape) == 0 {
		n = 1
	}
	size := p.count(1 << 40)
	if p.err == nil && (n == 0 || size != n*(int64(bits+7)/8)) {
		p.err = fmt.Errorf("an array of %v has %d bytes", shape, size)
	}
	return p.bytes(size)
}
