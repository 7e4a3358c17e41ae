package inbound

import (
	"bytes"
	"io"
)

// Edit replaces a part of a body.
type Edit struct {
	At, Length int64 // of the part, in bytes
	Text       []byte
}

// Replace makes Reader and Size return the body with these edits, which must be in order and must
// not overlap. The whole body must be kept.
func (b *Body) Replace(edits []Edit) { b.edits = edits }

// edited returns a reader of the body with the edits.
func (b *Body) edited() io.Reader {
	var parts []io.Reader
	at := int64(0)
	for _, e := range b.edits {
		parts = append(parts, b.section(at, e.At), bytes.NewReader(e.Text))
		at = e.At + e.Length
	}
	return io.MultiReader(append(parts, b.section(at, b.received()))...)
}

// section returns a reader of the received bytes in [from, to).
func (b *Body) section(from, to int64) io.Reader {
	head := int64(len(b.head))
	inHead := bytes.NewReader(b.head[min(from, head):min(to, head)])
	if to <= head {
		return inHead
	}
	return io.MultiReader(inHead, b.file.section(max(from, head)-head, to-head))
}

// received returns the number of bytes kept in memory and in the file.
func (b *Body) received() int64 {
	size := int64(len(b.head))
	if b.file != nil {
		size += b.file.size
	}
	return size
}
