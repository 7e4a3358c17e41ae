package textfile

import (
	"bytes"
	"fmt"
	"io"
	"unicode/utf8"
)

// The bounds of what is read, whoever sent it. They are far above what any of the
// formats needs.
const (
	MaxLine = 16 << 20  // bytes of a line
	MaxFile = 512 << 20 // bytes of a file that is read whole
)

// Checker refuses a file while it is written to it: what is no text in UTF-8, a
// line that is too long, and too much of it. Its errors are Faults.
type Checker struct {
	Name  string // of the file
	Is    string // what the file is to be, like CSV
	Line  int64  // the longest line, in bytes with its end; 0 is any
	Total int64  // the longest file, in bytes

	lines, inLine, seen int64
	part                []byte // of a character that the next bytes end
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

// otherCoding is what the byte-order mark at a file's beginning says, unless that is
// UTF-8; empty without one.
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

// valid looks at whole characters, and keeps the part of one at the end.
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

// End checks that the file ends as it may.
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

// ReadAll reads a file whole, without its byte-order mark, and refuses it as soon
// as c does.
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
