package csvfile

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"

	"github.com/gfaas/gfaas/pkg/textfile"
)

// syntaxFault turns the CSV reader's error into a Fault. It names the line the
// record begins on, since a quote that is never closed swallows the rest of
// the file, and the column when the header is known.
func syntaxFault(err error, name string, header []string, data []byte) error {
	var parse *csv.ParseError
	if !errors.As(err, &parse) {
		return fmt.Errorf("read %s: %w", name, err)
	}
	f := &textfile.Fault{File: name, Line: parse.StartLine}
	switch {
	case errors.Is(parse.Err, csv.ErrBareQuote):
		f.What = `a quote inside a field that is not quoted, expected "like ""this"""`
	case errors.Is(parse.Err, csv.ErrQuote):
		f.What = `a quoted field that does not end, expected a closing quote before the comma`
	default:
		f.What = parse.Err.Error()
	}
	if field := fieldAt(data, parse); field < len(header) {
		f.Where = header[field]
	}
	return f
}

// fieldAt counts the commas outside quotes between the record's begin and the
// place of the error.
func fieldAt(data []byte, parse *csv.ParseError) int {
	for line := 1; line < parse.StartLine; line++ {
		data = data[bytes.IndexByte(data, '\n')+1:]
	}
	line, column, field, quoted := parse.StartLine, 1, 0, false
	for _, b := range data {
		if line == parse.Line && column >= parse.Column || line > parse.Line {
			break
		}
		column++
		switch {
		case b == '\n':
			line, column = line+1, 1
		case b == '"':
			quoted = !quoted
		case b == ',' && !quoted:
			field++
		}
	}
	return field
}
