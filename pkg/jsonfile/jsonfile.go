// Package jsonfile reads the project's JSON files strictly: unknown, repeated
// and missing keys are errors, and every fault names its file and line. The packages of
// the file formats use it.
package jsonfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/gfaas/gfaas/pkg/textfile"
)

// maxFile bounds the size of a file, in bytes. A plan of a million instances is smaller.
const maxFile = 256 << 20

// File holds the text of a JSON file, from which Fault finds lines.
type File struct {
	name string
	data []byte
}

// Read reads one JSON value into v, a pointer to a struct. A key is required
// unless its field is tagged omitempty or optional. null is accepted only for a list, as
// an empty one. If the keys or values do not match v, Read returns the File with the error.
func Read(r io.Reader, name string, v any) (*File, error) {
	// A JSON file may be a single line, so only the total size is bounded.
	data, err := textfile.ReadAll(r, &textfile.Checker{Name: name, Is: "JSON", Total: maxFile})
	if err != nil {
		return nil, err
	}
	f := &File{name: name, data: data}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, &textfile.Fault{File: name, Line: 1, What: "the file is empty, expected a JSON object"}
	}
	if err := f.checkSyntax(); err != nil {
		return nil, err
	}
	if err := f.checkShape(v); err != nil {
		return f, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return nil, f.unmarshalFault(err)
	}
	return f, nil
}

// Version returns the number under the key version, or 0 without that key.
func (f *File) Version() float64 {
	var head struct {
		Version float64 `json:"version"`
	}
	_ = json.Unmarshal(f.data, &head) // errors elsewhere in the file do not matter here
	return head.Version
}

// checkSyntax returns an error unless the file holds exactly one JSON value.
func (f *File) checkSyntax() error {
	var raw json.RawMessage
	err := json.Unmarshal(f.data, &raw)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return &textfile.Fault{File: f.name, Line: f.line(syntax.Offset), What: syntax.Error() + ", expected one JSON object"}
	}
	return err
}

func (f *File) unmarshalFault(err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return &textfile.Fault{File: f.name, Line: f.line(kind.Offset), Where: kind.Field,
			What: fmt.Sprintf("%s, expected %s", kind.Value, kind.Type)}
	}
	return fmt.Errorf("%s: %w", f.name, err)
}

// line returns the line of the byte before offset.
func (f *File) line(offset int64) int {
	offset = min(max(offset-1, 0), int64(len(f.data)))
	return 1 + bytes.Count(f.data[:offset], []byte("\n"))
}
