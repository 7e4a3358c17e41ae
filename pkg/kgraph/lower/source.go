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

// source is a JSON file that was read, kept so that later faults find their line.
type source struct {
	name string
	text []byte
}

// fault is what is wrong at a place, which is a JSON pointer.
func (s *source) fault(where, format string, args ...any) error {
	return &textfile.Fault{File: s.name, Line: kgraph.Line(s.text, where), Where: where, What: fmt.Sprintf(format, args...)}
}

// MaxFile is the longest file that is lowered, in bytes.
const MaxFile = 64 << 20

// decode reads one JSON value. A key that is there twice is a fault, and one that is
// unknown is where the file is read strictly.
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
			err = errors.New("there is more after it, expected one JSON object")
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

// shape compares a text with the type that it is to become, token by token.
type shape struct {
	dec    *json.Decoder
	strict bool
	at     []byte // where it is, as a JSON pointer
}

// maxDepth is how deep files may be nested: Unmarshal is for less deep ones yet.
const maxDepth = 32

// value reads a value that should become a t; anything where t is nil.
func (w *shape) value(t reflect.Type, depth int) error {
	tok, err := w.dec.Token()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it ends in the middle, expected JSON")
	case err != nil:
		return fmt.Errorf("%w, expected JSON", err)
	case depth > maxDepth:
		return fmt.Errorf("nested too deeply, expected at most %d levels", maxDepth)
	}
	if t != nil && (t.Kind() == reflect.Interface || t == reflect.TypeFor[json.RawMessage]()) {
		t = nil
	}
	kind := reflect.Invalid
	if t != nil {
		kind = t.Kind()
	}
	expected := ""
	switch _, scalar := tok.(json.Delim); {
	case tok == json.Delim('{') && (t == nil || kind == reflect.Struct || kind == reflect.Map):
		return w.object(t, depth)
	case tok == json.Delim('[') && (t == nil || kind == reflect.Slice || kind == reflect.Array):
		return w.list(t, depth)
	case t == nil && !scalar:
		return nil
	case kind == reflect.Struct, kind == reflect.Map:
		expected = "an object"
	case kind == reflect.Slice, kind == reflect.Array:
		expected = "a list"
	case kind == reflect.String:
		if _, is := tok.(string); is {
			return nil
		}
		expected = "a string"
	default:
		if n, is := tok.(json.Number); is {
			if _, err := strconv.ParseInt(n.String(), 10, 64); err == nil {
				return nil
			}
		}
		expected = "a whole number"
	}
	return fmt.Errorf("%s, expected %s", described(tok), expected)
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
			return errors.New("the key is there twice, expected once")
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

// field is the type of what is under a key; nil for anything.
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
		return errors.New("it ends in the middle, expected JSON")
	}
	return nil
}
