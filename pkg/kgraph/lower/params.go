package lower

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// Param is a named parameter of a model.
type Param struct {
	Name string
	Data []byte
}

// Magic numbers in TVM's parameter files: of a list of named arrays, and of an array.
const (
	paramsMagic = 0xF7E58D4F05049CB7
	arrayMagic  = 0xDD5E40F096B4A13F
)

// Params parses a TVM parameter file (save_param_dict).
func Params(r io.Reader) ([]Param, error) {
	p := &params{r: r}
	if p.u64() != paramsMagic || p.err != nil {
		return nil, errors.New("not a file of TVM parameters")
	}
	p.u64() // reserved
	names := make([]string, 0, 16)
	for range p.count(1 << 20) {
		names = append(names, string(p.bytes(p.count(1<<16))))
	}
	if n := p.count(1 << 20); p.err == nil && n != int64(len(names)) {
		p.err = fmt.Errorf("%d names, but %d arrays", len(names), n)
	}
	var list []Param
	seen := map[string]bool{}
	for _, name := range names {
		if p.err == nil && seen[name] {
			p.err = fmt.Errorf("the parameter %q is given twice, expected once", name)
		}
		if p.err != nil {
			break
		}
		seen[name] = true
		list = append(list, Param{name, p.array()})
	}
	if p.err != nil {
		return nil, fmt.Errorf("TVM parameters, byte %d: %w", p.at, p.err)
	}
	return list, nil
}

// CheckParams returns an error if a parameter cannot be stored under prefix and its name, or does not
// fit the object that the request reads under that key. It accepts parameters that the request does not
// use.
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
			return fmt.Errorf("the name of the parameter %q is not a valid key", key)
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

// params reads values from a parameter file and keeps the first error.
type params struct {
	r   io.Reader
	at  int64 // bytes read
	err error
}

func (p *params) bytes(n int64) []byte {
	if p.err != nil {
		return nil
	}
	// ReadAll allocates no more than the file contains, whatever length it states.
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

// count reads a number of at most limit.
func (p *params) count(limit uint64) int64 {
	n := p.u64()
	if n > limit && p.err == nil {
		p.err = fmt.Errorf("a count of %d is too large", n)
	}
	if p.err != nil {
		return 0
	}
	return int64(n)
}

// array reads an array (device, type, shape and bytes) and returns its bytes.
func (p *params) array() []byte {
	if p.u64() != arrayMagic && p.err == nil {
		p.err = errors.New("an array has an invalid header")
	}
	p.u64()     // reserved
	p.number(8) // device
	dims := p.number(4)
	dtype := p.number(4) // kind, bits and, in two bytes, lanes
	bits, lanes := dtype>>8&0xff, dtype>>16
	switch {
	case p.err != nil:
	case dims > 32:
		p.err = fmt.Errorf("an array has %d dimensions, expected at most 32", dims)
	case lanes != 1: // TVM itself reads and writes only a part of such an array
		p.err = fmt.Errorf("an array has vectors of %d lanes, expected 1", lanes)
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
		p.err = fmt.Errorf("an array of the shape %v has %d bytes", shape, size)
	}
	return p.bytes(size)
}
