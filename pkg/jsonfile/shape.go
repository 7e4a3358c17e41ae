package jsonfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// maxDepth bounds the nesting; no format is as deep.
const maxDepth = 32

// walker compares a file, token by token, with the type that it is decoded into. The
// syntax has been checked, so reading a token does not fail.
type walker struct {
	file  *File
	dec   *json.Decoder
	path  []byte
	depth int
	find  string // the path whose line is wanted; empty for none
	found int

	offset int64 // up to which lines have been counted
	lines  int
}

// line returns the line of the last token read.
func (w *walker) line() int {
	offset := w.dec.InputOffset()
	w.lines += bytes.Count(w.file.data[w.offset:offset], []byte("\n"))
	w.offset = offset
	return 1 + w.lines
}

// checkShape returns an error if the file's keys or kinds of values differ from v's type.
func (f *File) checkShape(v any) error {
	w := &walker{file: f, dec: json.NewDecoder(bytes.NewReader(f.data))}
	w.dec.UseNumber()
	return w.value(reflect.TypeOf(v).Elem())
}

// Fault returns an error with the line of a path in the file, such as
// gpus[0].instances[2].sm_pct. If the file has no such path, the line is that of the
// nearest path that contains it.
func (f *File) Fault(v any, path, what string) error {
	for at := path; ; at = parent(at) {
		w := &walker{file: f, dec: json.NewDecoder(bytes.NewReader(f.data)), find: at}
		w.dec.UseNumber()
		_ = w.value(reflect.TypeOf(v).Elem())
		if w.found > 0 || at == "" {
			return &textfile.Fault{File: f.name, Line: max(w.found, 1), Where: path, What: what}
		}
	}
}

func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

func (w *walker) fault(format string, args ...any) error {
	return &textfile.Fault{File: w.file.name, Line: w.line(), Where: string(w.path), What: fmt.Sprintf(format, args...)}
}

// value reads one value and returns an error if it cannot be decoded into a t.
func (w *walker) value(t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	tok, err := w.dec.Token()
	if err != nil {
		return w.fault("%v", err)
	}
	if w.find != "" && w.find == string(w.path) && w.found == 0 {
		w.found = w.line()
	}
	if w.depth++; w.depth > maxDepth {
		return w.fault("nested too deeply, expected at most %d levels", maxDepth)
	}
	defer func() { w.depth-- }()
	switch {
	case tok == json.Delim('{') && t.Kind() == reflect.Struct:
		return w.object(t)
	case tok == json.Delim('[') && t.Kind() == reflect.Slice:
		return w.list(t)
	case tok == nil && t.Kind() == reflect.Slice:
		return nil
	case fits(tok, t.Kind()):
		return nil
	}
	return w.fault("%s, expected %s", describe(tok), expected(t.Kind()))
}

func (w *walker) list(t reflect.Type) error {
	size := len(w.path)
	for i := 0; w.dec.More(); i++ {
		w.path = strconv.AppendInt(append(w.path[:size], '['), int64(i), 10)
		w.path = append(w.path, ']')
		if err := w.value(t.Elem()); err != nil {
			return err
		}
	}
	w.path = w.path[:size]
	_, err := w.dec.Token()
	return err
}

func (w *walker) object(t reflect.Type) error {
	size := len(w.path)
	begin := w.line()
	lines := map[string]int{}
	for w.dec.More() {
		tok, err := w.dec.Token()
		if err != nil {
			return w.fault("%v", err)
		}
		key, _ := tok.(string)
		w.path = w.path[:size]
		if size > 0 {
			w.path = append(w.path, '.')
		}
		w.path = append(w.path, shorten(key)...)
		field, known := fieldNamed(t, key)
		if !known {
			near := textfile.Near(key, keys(t, false))
			if near != "" {
				near = " (did you mean " + near + "?)"
			}
			return w.fault("unknown key, expected one of %s%s", strings.Join(keys(t, false), ", "), near)
		}
		if first, twice := lines[key]; twice {
			return w.fault("the key is on line %d already, expected once", first)
		}
		lines[key] = w.line()
		if err := w.value(field.Type); err != nil {
			return err
		}
	}
	w.path = w.path[:size]
	for _, key := range keys(t, true) {
		if lines[key] == 0 && w.find == "" {
			return &textfile.Fault{File: w.file.name, Line: begin, Where: strings.TrimPrefix(string(w.path)+"."+key, "."),
				What: "the key is missing, expected a value"}
		}
	}
	_, err := w.dec.Token()
	return err
}

func fieldNamed(t reflect.Type, key string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name == key && key != "" && key != "-" {
			return t.Field(i), true
		}
	}
	return reflect.StructField{}, false
}

// keys returns the keys of a struct, all of them or the required ones: those with neither
// omitempty nor the tag optional.
func keys(t reflect.Type, required bool) []string {
	var out []string
	for i := range t.NumField() {
		tag := strings.Split(t.Field(i).Tag.Get("json"), ",")
		if tag[0] != "" && tag[0] != "-" && !(required && (slices.Contains(tag[1:], "omitempty") || t.Field(i).Tag.Get("optional") != "")) {
			out = append(out, tag[0])
		}
	}
	return out
}

// fits reports whether a scalar token can be decoded into kind.
func fits(tok json.Token, kind reflect.Kind) bool {
	switch tok := tok.(type) {
	case string:
		return kind == reflect.String
	case bool:
		return kind == reflect.Bool
	case json.Number:
		_, err := strconv.ParseInt(tok.String(), 10, 64)
		v, floatErr := tok.Float64()
		return kind == reflect.Int && err == nil || kind == reflect.Float64 && floatErr == nil && !number.Vanished(tok.String(), v)
	}
	return false
}

func expected(kind reflect.Kind) string {
	switch kind {
	case reflect.Struct:
		return "an object"
	case reflect.Slice:
		return "a list"
	case reflect.String:
		return "a string"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	}
	return kind.String()
}

func describe(tok json.Token) string {
	switch tok := tok.(type) {
	case nil:
		return "null"
	case json.Delim:
		if tok == '{' {
			return "an object"
		}
		return "a list"
	case string:
		return strconv.Quote(shorten(tok))
	case json.Number:
		return shorten(tok.String())
	}
	return fmt.Sprint(tok)
}

// shorten cuts a long text of the file for a message.
func shorten(s string) string {
	const most = 60
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return s
}
