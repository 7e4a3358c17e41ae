package textfile

import (
	"bytes"
	"fmt"
	"io"
	"unicode/utf8"
)

// The largest inputs, from any source. They are far above the needs of all formats.
const (
	MaxLine = 16 << 20  // bytes of a line
	MaxFile = 512 << 20 // bytes of a file that is read whole
)

// Checker is a writer that checks the file that is written to it. A write fails if the file is not UTF-8 text, or if a line
// or the file is too long. The errors are Faults.
type Checker struct {
	Name  string // name of the file
	Is    string // expected format of the file, such as CSV
	Line  int64  // size limit of a line, in bytes, including its end; 0: no limit
	Total int64  // size limit of the file, in bytes

	lines  int64  // number of complete lines
	inLine int64  // bytes of the current line
	seen   int64  // bytes of the file
	part   []byte // the first bytes of a character whose other bytes have not been written yet
}

// Write checks the next bytes.
func (c *Checker) Write(p []byte) (int, error) {
	if c.seen += int64(len(p)); c.seen > c.Total {
		return 0, c.fault(c.lines+1, "the file has more than %d bytes, expected at most that", c.Total)
	}
	if coding := otherCoding(p); coding != "" && c.seen == int64(len(p)) {
		return 0, c.fault(1, "the file is in %s, expected %s in UTF-8: save it as that", coding, c.Is)
	}
	if bytes.IndexByte(p, 0) >= 0 || !c.valid(p) {
		return 0, c.notText()
	}
	for rest := p; c.Line > 0 && len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n') + 1
		c.inLine += int64(len(rest))
		if end > 0 {
			c.inLine -= int64(len(rest) - end)
		}
		if c.inLine > c.Line {
			return 0, c.fault(c.lines+1, "the line has more than %d bytes, expected at most that", c.Line)
		}
		if end == 0 {
			break
		}
		c.lines, c.inLine, rest = c.lines+1, 0, rest[end:]
	}
	return len(p), nil
}

// otherCoding returns the encoding of a byte-order mark other than UTF-8's, or "".
func otherCoding(begin []byte) string {
	for _, of := range []struct{ mark, coding string }{
		{"\xFF\xFE\x00\x00", "UTF-32"}, {"\x00\x00\xFE\xFF", "UTF-32"}, {"\xFF\xFE", "UTF-16"}, {"\xFE\xFF", "UTF-16"},
	} {
		if bytes.HasPrefix(begin, []byte(of.mark)) {
			return of.coding
		}
	}
	return ""
}

// valid reports whether the complete characters in p are UTF-8. It stores an incomplete character at the end of p for
// the next call.
func (c *Checker) valid(p []byte) bool {
	if len(c.part) > 0 {
		p = append(c.part, p...)
	}
	whole := len(p)
	for i := max(len(p)-utf8.UTFMax+1, 0); i < len(p); i++ {
		if utf8.RuneStart(p[i]) && !utf8.FullRune(p[i:]) {
			whole = i
			break
		}
	}
	c.part = bytes.Clone(p[whole:])
	return utf8.Valid(p[:whole])
}

// End returns an error if the file ends within a character. It is called after the last Write.
func (c *Checker) End() error {
	if len(c.part) > 0 {
		return c.notText()
	}
	return nil
}

func (c *Checker) notText() error {
	return c.fault(1, "not a text file, expected %s in UTF-8", c.Is)
}

func (c *Checker) fault(line int64, format string, args ...any) error {
	return &Fault{File: c.Name, Line: int(line), What: fmt.Sprintf(format, args...)}
}

// ReadAll reads a whole file without its byte-order mark. It stops as soon as c fails.
func ReadAll(r io.Reader, c *Checker) ([]byte, error) {
	var data bytes.Buffer
	if _, err := io.Copy(io.MultiWriter(c, &data), r); err != nil {
		if f, ok := err.(*Fault); ok {
			return nil, f
		}
		return nil, fmt.Errorf("read %s: %w", c.Name, err)
	}
	return bytes.TrimPrefix(data.Bytes(), []byte("\uFEFF")), c.End()
}
