package lower

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// source is the text of a JSON file. It is kept to find the lines of later faults.
type source struct {
	name string
	text []byte
}

// fault returns an error at a place, given as a JSON pointer.
func (s *source) fault(where, format string, args ...any) error {
	return &textfile.Fault{File: s.name, Line: kgraph.Line(s.text, where), Where: where, What: fmt.Sprintf(format, args...)}
}

// MaxFile limits a file to lower, in bytes.
const MaxFile = 64 << 20

// Values of decode's argument strict.
const (
	strict  = true
	lenient = false
)

// decode decodes one JSON value into v. Duplicate keys are errors; unknown keys are errors if strict is
// set.
func decode(r io.Reader, name string, strict bool, v any) (*source, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	s := &source{name, bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))}
	if len(s.text) > MaxFile {
		return nil, s.fault("", "more than %d bytes", MaxFile)
	}
	w := &shape{dec: json.NewDecoder(bytes.NewReader(s.text)), strict: strict}
	w.dec.UseNumber()
	err = w.value(reflect.TypeOf(v).Elem(), 0)
	if err == nil {
		if _, more := w.dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("text after the end of the object, expected one JSON object")
		}
	}
	if err == nil {
		err = json.Unmarshal(s.text, v)
	}
	if err != nil {
		line := 1 + bytes.Count(s.text[:min(w.dec.InputOffset(), int64(len(s.text)))], []byte("\n"))
		return nil, &textfile.Fault{File: name, Line: line, Where: string(w.at), What: err.Error()}
	}
	return s, nil
}

// shape compares a text with a Go type, token by token.
type shape struct {
	dec    *json.Decoder
	strict bool
	at     []byte // current position as a JSON pointer
}

// maxDepth limits the nesting of a file. It is far below the limit of json.Unmarshal.
const maxDepth = 32

// value reads a value of type t, or of any type if t is nil.
func (w *shape) value(t reflect.Type, depth int) error {
	tok, err := w.dec.Token()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("unexpected end of the text, expected JSON")
	case err != nil:
		return fmt.Errorf("%w, expected JSON", err)
	case depth > maxDepth:
		return fmt.Errorf("nested too deeply, expected at most %d levels", maxDepth)
	}
	if t != nil && (t.Kind() == reflect.Interface || t == reflect.TypeFor[json.RawMessage]()) {
		t = nil
	}
	if form := expected(t); form != "" && form != actual(tok) {
		return fmt.Errorf("%s, expected %s", described(tok), form)
	}
	switch tok {
	case json.Delim('{'):
		return w.object(t, depth)
	case json.Delim('['):
		return w.list(t, depth)
	}
	return nil
}

// expected returns the JSON form of values of type t, or "" for any form.
func expected(t reflect.Type) string {
	if t == nil {
		return ""
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.String:
		return "a string"
	}
	return "a whole number"
}

// actual returns the JSON form of a value that starts with tok, or "" if no type expects it.
func actual(tok json.Token) string {
	switch tok := tok.(type) {
	case json.Delim:
		return described(tok)
	case string:
		return "a string"
	case json.Number:
		if _, err := tok.Int64(); err == nil {
			return "a whole number"
		}
	}
	return ""
}

func described(tok json.Token) string {
	switch tok := tok.(type) {
	case json.Delim:
		if tok == '{' {
			return "an object"
		}
		return "a list"
	case string:
		return strconv.Quote(tok[:min(len(tok), 40)])
	case nil:
		return "null"
	}
	return fmt.Sprint(tok)
}

func (w *shape) list(t reflect.Type, depth int) error {
	var element reflect.Type
	if t != nil {
		element = t.Elem()
	}
	size, n := len(w.at), 0
	for ; w.dec.More(); n++ {
		w.at = strconv.AppendInt(append(w.at[:size], '/'), int64(n), 10)
		if err := w.value(element, depth+1); err != nil {
			return err
		}
	}
	w.at = w.at[:size]
	if t != nil && t.Kind() == reflect.Array && n != t.Len() {
		return fmt.Errorf("%d values, expected %d", n, t.Len())
	}
	return w.end()
}

func (w *shape) object(t reflect.Type, depth int) error {
	size := len(w.at)
	seen := map[string]bool{}
	for w.dec.More() {
		tok, err := w.dec.Token()
		if err != nil {
			return fmt.Errorf("%w, expected JSON", err)
		}
		key, _ := tok.(string)
		w.at = append(append(w.at[:size], '/'), kgraph.Pointer(key)...)
		if seen[key] {
			return errors.New("the key is given twice, expected once")
		}
		seen[key] = true
		of, known := field(t, key)
		if !known && w.strict {
			return errors.New("unknown key")
		}
		if err := w.value(of, depth+1); err != nil {
			return err
		}
	}
	w.at = w.at[:size]
	return w.end()
}

// field returns the type of the value under a key; nil means any type.
func field(t reflect.Type, key string) (of reflect.Type, known bool) {
	switch {
	case t == nil:
		return nil, true
	case t.Kind() == reflect.Map:
		return t.Elem(), true
	}
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name == key {
			return t.Field(i).Type, true
		}
	}
	return nil, false
}

// end reads the end of a list or an object.
func (w *shape) end() error {
	if _, err := w.dec.Token(); err != nil {
		return errors.New("unexpected end of the text, expected JSON")
	}
	return nil
}
