// Package jsonfile reads the project's JSON files strictly: unknown, repeated
// and missing keys are errors, and every fault names its file and line.
package jsonfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/gfaas/gfaas/pkg/textfile"
)

// maxFile is the largest file, in bytes: a plan of a million instances is smaller.
const maxFile = 256 << 20

// File is a JSON file that was read, kept so that later faults find their line.
type File struct {
	name string
	data []byte
}

// Read reads one JSON value into v, a pointer to a struct. A key is required
// unless its field is tagged omitempty or optional; null stands for an empty list only. A
// file whose keys or values are not v's is returned beside the error.
func Read(r io.Reader, name string, v any) (*File, error) {
	// Lines mean nothing to JSON: a plan for many GPUs may be one.
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

// Version is the number under the key version, 0 when there is none.
func (f *File) Version() float64 {
	var head struct {
		Version float64 `json:"version"`
	}
	_ = json.Unmarshal(f.data, &head) // what else is in the file is no matter here
	return head.Version
}

// checkSyntax accepts exactly one JSON value.
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

// line is the line of the byte before that offset.
func (f *File) line(offset int64) int {
	offset = min(max(offset-1, 0), int64(len(f.data)))
	return 1 + bytes.Count(f.data[:offset], []byte("\n"))
}
