package lower

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

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

// decode decodes one JSON value into v. Duplicate keys and null are errors; unknown keys are errors if strict
// is set.
func decode(r io.Reader, name string, strict bool, v any) (*source, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	s := &source{name, bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))}
	if len(s.text) > MaxFile {
		return nil, s.fault("", "more than %d bytes", MaxFile)
	}
	dec := jsontext.NewDecoder(bytes.NewReader(s.text))
	forms := json.WithUnmarshalers(json.UnmarshalFromFunc(checkForm))
	err = json.UnmarshalDecode(dec, v, json.RejectUnknownMembers(strict), forms)
	if err != nil {
		return nil, s.decodeFault(dec, err)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, s.faultAt(dec.InputOffset(), "", "text after the end of the object, expected one JSON object")
	}
	return s, nil
}

// checkForm returns an error if the next value does not have the JSON form of v. Otherwise it returns
// errors.ErrUnsupported, so that the decoder reads the value.
func checkForm(dec *jsontext.Decoder, v any) error {
	t := reflect.TypeOf(v).Elem()
	if t.Kind() == reflect.Interface || t == reflect.TypeFor[stdjson.RawMessage]() {
		return errors.ErrUnsupported // any form
	}
	form, kind := expected(t)
	found := ""
	switch is := dec.PeekKind(); is {
	case kind, jsontext.KindInvalid:
		return errors.ErrUnsupported
	case jsontext.KindBeginObject:
		found = "an object"
	case jsontext.KindBeginArray:
		found = "a list"
	default:
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		found = string(value[:min(len(value), 40)])
	}
	return fmt.Errorf("%s, expected %s", found, form)
}

// expected returns the JSON form of values of type t.
func expected(t reflect.Type) (form string, kind jsontext.Kind) {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object", jsontext.KindBeginObject
	case reflect.Slice:
		return "a list", jsontext.KindBeginArray
	case reflect.String:
		return "a string", jsontext.KindString
	}
	return "a whole number", jsontext.KindNumber
}

// faultAt returns an error at a place in the text, which is after the first n bytes.
func (s *source) faultAt(n int64, where, what string) error {
	return &textfile.Fault{File: s.name, Line: 1 + bytes.Count(s.text[:n], []byte("\n")), Where: where, What: what}
}

// decodeFault returns an error of the decoder with its place.
func (s *source) decodeFault(dec *jsontext.Decoder, err error) error {
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		switch where := string(e.JSONPointer); {
		case errors.Is(err, json.ErrUnknownName):
			return s.fault(where, "unknown key")
		case len(e.JSONValue) > 0: // a number with a fraction, or out of range
			return s.fault(where, "%s, expected a whole number", e.JSONValue)
		default:
			return s.fault(where, "%v", e.Err)
		}
	}
	e, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok || errors.Is(err, io.ErrUnexpectedEOF):
		return s.faultAt(int64(len(s.text)), "", "unexpected end of the text, expected JSON")
	case errors.Is(err, jsontext.ErrDuplicateName):
		return s.fault(string(e.JSONPointer), "the key is given twice, expected once")
	}
	return s.faultAt(e.ByteOffset, string(dec.StackPointer()), e.Err.Error()+", expected JSON")
}
