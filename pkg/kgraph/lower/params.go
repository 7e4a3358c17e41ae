package lower

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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
	for _, name := range names {
		if p.err != nil {
			break
		}
		out = append(out, Param{name, p.array()})
	}
	if p.err != nil {
		return nil, fmt.Errorf("TVM parameters, byte %d: %w", p.at, p.err)
	}
	return out, nil
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
	bits := p.number(4) >> 8 & 0xff
	if dims > 32 && p.err == nil {
		p.err = fmt.Errorf("an array of %d dimensions", dims)
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
