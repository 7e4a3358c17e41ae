// Package fields finds the fields of a request's body that a gateway needs, the model and whether
// the answer is streamed, in JSON objects and in forms. It reads the body as a stream and decodes
// no other field. For each model, it returns the position in the body, so that the caller can
// replace the name and leave every other byte as it is.
package fields

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/url"

	"github.com/gfaas/gfaas/pkg/function"
)

const (
	maxModel    = function.MaxModelName // limit on a model's name, in bytes
	maxModels   = 64                    // limit on the fields named model of one body, because their positions are kept
	maxPartHead = 64 << 10              // limit on the head of a form's part, in bytes
	maxText     = 6*256 + 2             // bytes of a JSON string of up to 256 escaped characters
)

// Found describes the fields of a body.
type Found struct {
	Model  string // of the last field named model, which counts in most servers
	Models []Span // the value of each such field, as encoded in the body
	Stream bool   // the last field named stream is true

	encode func(name string) []byte
}

// Span is a part of a body.
type Span struct{ At, Length int64 } // in bytes

// Encode returns a name as it must be written in place of each of Models.
func (f *Found) Encode(name string) []byte { return f.encode(name) }

// add adds a field named model.
func (f *Found) add(name string, at Span) error {
	if len(f.Models) == maxModels {
		return errors.New(`more than 64 fields are named "model"`)
	}
	f.Model, f.Models = name, append(f.Models, at)
	return nil
}

var (
	errNoName = errors.New(`"model" is not a name`)
	errNoForm = errors.New(`the form has no field "model"`)
)

// Find returns the fields of a body. Without a valid model, it returns an error, with the fields
// that it has found before. It reads the body to its end unless an error occurs first; it ignores
// an error behind the first model, because the function reports it.
func Find(body io.Reader, contentType string) (Found, error) {
	in := newReader(body)
	kind, parameters, err := mime.ParseMediaType(contentType)
	switch {
	case err == nil && kind == "multipart/form-data":
		return parts(in, parameters["boundary"])
	case err == nil && kind == "application/x-www-form-urlencoded" && in.peek() != '{': // curl names this type for JSON, too
		return pairs(in)
	}
	return object(in)
}

func encodeJSON(name string) []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(name) // a string in memory
	return bytes.TrimSuffix(text.Bytes(), []byte{'\n'})
}

func encodePair(name string) []byte { return []byte(url.QueryEscape(name)) }

// streams reports whether the text of a form's field stream means true.
func streams(text string) bool { return text == "true" || text == "True" || text == "1" }
