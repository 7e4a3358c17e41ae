package fields

import (
	"bufio"
	"io"
)

// reader reads a body and knows the position of the next byte.
type reader struct {
	*bufio.Reader
	from *counter
}

// counter counts the bytes that are read from a body.
type counter struct {
	io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

func newReader(body io.Reader) reader {
	c := &counter{Reader: body}
	return reader{bufio.NewReader(c), c}
}

// at returns the number of bytes before the next one.
func (r reader) at() int64 { return r.from.n - int64(r.Buffered()) }

// since returns the span from a position to the next byte.
func (r reader) since(at int64) Span { return Span{at, r.at() - at} }

// next returns the next byte that is not white space.
func (r reader) next() (byte, error) {
	for {
		c, err := r.ReadByte()
		if err != nil || c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c, err
		}
	}
}

// peek returns the first byte of the body that is not white space, or 0, without reading past it.
func (r reader) peek() byte {
	c, err := r.next()
	if err != nil {
		return 0
	}
	_ = r.UnreadByte() // it was just read
	return c
}
