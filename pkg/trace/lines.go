package trace

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/gfaas/gfaas/pkg/textfile"
)

// lines reads a CSV file record by record in one buffer.
type lines struct {
	in     *bufio.Reader
	name   string
	line   int // of the record read last: where it begins
	ended  int // lines read so far
	long   []byte
	fields [][]byte
}

func newLines(r io.Reader, name string) *lines {
	return &lines{in: bufio.NewReaderSize(r, 1<<18), name: name}
}

// next is the next record that is not blank. Its fields hold until the one
// after it.
func (l *lines) next() ([][]byte, error) {
	for {
		text, err := l.read(l.long[:0])
		if err != nil {
			return nil, err
		}
		l.line = l.ended
		if l.line == 1 {
			text = bytes.TrimPrefix(text, []byte("\uFEFF"))
		}
		if len(text) == 0 {
			continue
		}
		if bytes.IndexByte(text, '"') >= 0 {
			return l.quoted(text)
		}
		l.fields = l.fields[:0]
		for {
			i := bytes.IndexByte(text, ',')
			if i < 0 {
				l.fields = append(l.fields, trim(text))
				return l.fields, nil
			}
			l.fields = append(l.fields, trim(text[:i]))
			text = text[i+1:]
		}
	}
}

// read appends one line to before, without its end; the text is in the
// reader's own buffer when before is empty and the line fits there.
func (l *lines) read(before []byte) ([]byte, error) {
	text, err := l.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) || len(before) > 0 {
		l.long = append(before, text...)
		for errors.Is(err, bufio.ErrBufferFull) && len(l.long) <= textfile.MaxLine {
			text, err = l.in.ReadSlice('\n')
			l.long = append(l.long, text...)
		}
		text = l.long
	}
	switch {
	case len(text) > textfile.MaxLine:
		return nil, fault(l.name, l.ended+1, "", "the line has more than %d bytes, expected at most that", textfile.MaxLine)
	case errors.Is(err, io.EOF) && len(text) == len(before):
		return nil, io.EOF
	case err != nil && !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("read %s: %w", l.name, err)
	}
	l.ended++
	if !isText(text[len(before):]) {
		return nil, fault(l.name, 1, "", "not a text file, expected CSV in UTF-8")
	}
	text = bytes.TrimSuffix(text, []byte("\n"))
	return bytes.TrimSuffix(text, []byte("\r")), nil
}

// quoted reads a record with quotes, which may go on over several lines.
func (l *lines) quoted(text []byte) ([][]byte, error) {
	whole := append([]byte(nil), text...)
	for {
		in := csv.NewReader(bytes.NewReader(whole))
		in.FieldsPerRecord = -1
		record, err := in.Read()
		if err == nil {
			l.fields = l.fields[:0]
			for _, cell := range record {
				l.fields = append(l.fields, trim([]byte(cell)))
			}
			return l.fields, nil
		}
		if errors.Is(err, csv.ErrBareQuote) {
			return nil, fault(l.name, l.line, "", `a quote inside a field that is not quoted, expected "like ""this"""`)
		}
		more, end := l.read(append(whole, '\n'))
		if errors.Is(end, io.EOF) || bytes.Count(whole, []byte(`"`))%2 == 0 {
			return nil, fault(l.name, l.line, "", "a quoted field that does not end, expected a closing quote before the comma")
		}
		if end != nil {
			return nil, end
		}
		whole = append([]byte(nil), more...)
	}
}

func trim(cell []byte) []byte {
	if len(cell) > 0 && cell[0] > ' ' && cell[0] < utf8.RuneSelf && cell[len(cell)-1] > ' ' && cell[len(cell)-1] < utf8.RuneSelf {
		return cell
	}
	return bytes.TrimSpace(cell)
}

// isText holds for UTF-8 without zero bytes.
func isText(text []byte) bool {
	for _, c := range text {
		if c == 0 {
			return false
		}
		if c >= utf8.RuneSelf {
			return utf8.Valid(text) && bytes.IndexByte(text, 0) < 0
		}
	}
	return true
}
