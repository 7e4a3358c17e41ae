// Package safetensors reads the headers of safetensors files, and the indexes of models that are split over several files.
// It is as strict as the format's reference implementation, and stricter in two points: keys must be unique, and a file
// ends at the end of its last tensor. It reads headers only, never the tensors' bytes.
package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// A file begins with the length of its header, 8 bytes little-endian, and the header. The tensors follow.
const (
	lengthBytes = 8
	minHeader   = 2 // {}
	maxHeader   = 100_000_000
	maxDepth    = 127 // of lists and objects within each other, as in the reference
)

// MetadataKey is the only key of a header that does not name a tensor.
const MetadataKey = "__metadata__"

// sizes has the element types and their sizes in bytes.
var sizes = map[string]uint64{
	"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
	"U16": 2, "I16": 2, "F16": 2, "BF16": 2,
	"U32": 4, "I32": 4, "F32": 4,
	"U64": 8, "I64": 8, "F64": 8,
}

// Tensor describes one tensor of a file.
type Tensor struct {
	Name   string
	DType  string  // one of the format's names, such as BF16
	Shape  []int64 // none: a scalar
	Offset int64   // in the file, in bytes
	Bytes  int64
}

// Header is the contents of a header.
type Header struct {
	Tensors  []Tensor          // in the order of their places
	Metadata map[string]string // nil where the file says nothing
	Bytes    int64             // of the header, its length included: where the first tensor begins
}

// Error is a fault of a file.
type Error struct {
	File   string // empty unless the file is one of several
	Tensor string // whose entry is wrong; empty if it is the file as a whole
	Reason string
}

func (e *Error) Error() string {
	text := e.Reason
	if e.Tensor != "" {
		text = fmt.Sprintf("tensor %s: %s", quote(e.Tensor), text)
	}
	if e.File != "" {
		text = e.File + ": " + text
	}
	return text
}

// quote quotes a name for a message, shortened if it is long.
func quote(name string) string {
	const most = 100
	if len(name) > most {
		for cut := most; ; cut-- {
			if utf8.RuneStart(name[cut]) {
				return strconv.Quote(name[:cut]) + "…"
			}
		}
	}
	return strconv.Quote(name)
}

func fault(format string, args ...any) error { return &Error{Reason: fmt.Sprintf(format, args...)} }

// Read reads the header of a file of that size in bytes. A fault of the file is an *Error; any other error is the reader's.
func Read(r io.ReaderAt, size int64) (*Header, error) {
	var length [lengthBytes]byte
	if size < lengthBytes {
		return nil, fault("the file has %d bytes, expected at least %d for the length of the header", size, lengthBytes)
	}
	if err := ReadAt(r, length[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	switch {
	case n < minHeader:
		return nil, fault("the header has %d bytes, expected at least %d", n, minHeader)
	case n > maxHeader:
		return nil, fault("the header has %d bytes, expected at most %d", n, maxHeader)
	case int64(n) > size-lengthBytes:
		return nil, fault("the header has %d bytes, but the file has %d", n, size)
	}
	text := make([]byte, n)
	if err := ReadAt(r, text, lengthBytes); err != nil {
		return nil, err
	}
	h, err := parse(text)
	if err != nil {
		return nil, err
	}
	if err := h.place(size); err != nil {
		return nil, err
	}
	return h, nil
}

// ReadAt fills buf from an offset of a file. If the file has become shorter, it returns an *Error.
func ReadAt(r io.ReaderAt, buf []byte, at int64) error {
	n, err := r.ReadAt(buf, at)
	switch {
	case n == len(buf):
		return nil
	case errors.Is(err, io.EOF):
		return fault("the file ends at byte %d while it is read", at+int64(n))
	}
	return err
}

// parse parses the text of a header. Offsets are then as in the file, relative to the end of the header.
func parse(text []byte) (*Header, error) {
	if !utf8.Valid(text) {
		return nil, fault("the header is not UTF-8")
	}
	if text[0] != '{' {
		return nil, fault("the header begins with %q, expected {", text[0])
	}
	h := &Header{Bytes: lengthBytes + int64(len(text))}
	p := parser{jsontext.NewDecoder(bytes.NewBuffer(text))}
	err := p.object("the header", func(key string) error {
		if key == MetadataKey {
			return p.metadata(h)
		}
		t, err := p.tensor(key)
		h.Tensors = append(h.Tensors, t)
		return err
	})
	if err == nil {
		err = p.end()
	}
	return h, asFault(err, "the header")
}

// asFault converts an error of the JSON library to an *Error.
func asFault(err error, what string) error {
	var ours *Error
	if err == nil || errors.As(err, &ours) {
		return err
	}
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) {
		where := ""
		if last := syntax.JSONPointer.LastToken(); last != "" {
			where = ", near " + quote(last)
		}
		return fault("%s is not JSON: %v at byte %d%s", what, syntax.Err, syntax.ByteOffset, where)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fault("%s is not JSON: it ends too early", what)
	}
	return fault("%s: %v", what, err)
}

// place checks that the tensors follow each other without gaps, each with the length of its shape and type, from the end
// of the header to the end of the file. It converts offsets to offsets in the file.
func (h *Header) place(size int64) error {
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Name, b.Name))
	})
	end := int64(0) // of the tensor before
	for i := range h.Tensors {
		t := &h.Tensors[i]
		switch {
		case t.Offset < end:
			return &Error{Tensor: t.Name, Reason: fmt.Sprintf("begins at %d, within the previous tensor, which ends at %d", t.Offset, end)}
		case t.Offset > end:
			return &Error{Tensor: t.Name, Reason: fmt.Sprintf("begins at %d, after a gap: expected %d", t.Offset, end)}
		case t.Bytes > size-h.Bytes-t.Offset:
			return &Error{Tensor: t.Name, Reason: fmt.Sprintf("ends %d bytes after the end of the file", t.Bytes-(size-h.Bytes-t.Offset))}
		}
		end += t.Bytes
		t.Offset += h.Bytes
	}
	if end != size-h.Bytes {
		return fault("%d bytes after the last tensor, expected none", size-h.Bytes-end)
	}
	return nil
}

// length returns the bytes of a tensor with that type and shape. As in the reference, it fails if any partial product
// overflows.
func length(dtype string, shape []int64) (int64, error) {
	size := sizes[dtype]
	if size == 0 {
		return 0, fmt.Errorf("unknown dtype %s", quote(dtype))
	}
	n, overflow := uint64(1), uint64(0)
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape has %d, expected a whole number, 0 or more", d)
		}
		if overflow, n = bits.Mul64(n, uint64(d)); overflow != 0 {
			return 0, errors.New("the product of the dimensions exceeds 64 bits")
		}
	}
	if overflow, n = bits.Mul64(n, size); overflow != 0 || n > math.MaxInt64 {
		return 0, errors.New("the product of the dimensions exceeds 64 bits")
	}
	return int64(n), nil
}
