// Package reason defines reasons: machine-readable explanations of decisions and waits. A reason is
// a code, such as waiting-for-sms, with parameters. Policies return reasons, and daemons and
// commands print them as text or JSON. The packages that return reasons list their codes in a Table,
// from which docs/reasons.md is generated.
package reason

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Code identifies what a reason says, in kebab case.
type Code string

// Reason is a code with its parameters. It formats nothing before String or MarshalJSON is called.
// The zero value stands for no reason.
type Reason struct {
	Code   Code
	Params []Param
}

// Param is a parameter of a reason: a number or a text.
type Param struct {
	Key    string
	text   string
	number float64
	isText bool
}

// New returns a reason. Its parameters are printed in the given order.
func New(code Code, params ...Param) Reason { return Reason{code, params} }

// Number returns a parameter with a number.
func Number[T ~int | ~int32 | ~int64 | ~uint64 | ~float64](key string, v T) Param {
	n := float64(v)
	if math.IsNaN(n) || math.IsInf(n, 0) { // JSON has no such numbers
		return Text(key, strconv.FormatFloat(n, 'g', -1, 64))
	}
	return Param{Key: key, number: n}
}

// Millis returns a parameter with a duration in milliseconds. Its key ends in _ms.
func Millis(key string, d time.Duration) Param {
	return Param{Key: key, number: float64(d) / float64(time.Millisecond)}
}

// Text returns a parameter with a text.
func Text(key, text string) Param { return Param{Key: key, text: text, isText: true} }

// Value returns the value as a text.
func (p Param) Value() string {
	if p.isText {
		return p.text
	}
	return string(appendNumber(nil, p.number))
}

// Get returns the value of a parameter as a text, or "" if r does not have the parameter.
func (r Reason) Get(key string) string {
	for _, p := range r.Params {
		if p.Key == key {
			return p.Value()
		}
	}
	return ""
}

// IsZero reports whether r is the zero Reason.
func (r Reason) IsZero() bool { return r.Code == "" }

// With returns r with further parameters. A parameter replaces one with the same key.
func (r Reason) With(params ...Param) Reason {
	r.Params = slices.Clone(r.Params)
	for _, p := range params {
		if i := slices.IndexFunc(r.Params, func(o Param) bool { return o.Key == p.Key }); i >= 0 {
			r.Params[i] = p
		} else {
			r.Params = append(r.Params, p)
		}
	}
	return r
}

// String returns the text form, such as "waiting-for-sms; sm_pct=60; in_ms=12.5". It has only
// printable ASCII characters, so that it can be the value of an HTTP header. For the zero Reason, it
// is empty.
func (r Reason) String() string {
	if len(r.Params) == 0 {
		return string(r.Code)
	}
	return string(r.Append(make([]byte, 0, 64)))
}

// Append appends the text form.
func (r Reason) Append(to []byte) []byte {
	to = append(to, r.Code...)
	for _, p := range r.Params {
		to = append(to, "; "...)
		to = append(to, p.Key...)
		to = append(to, '=')
		switch {
		case !p.isText:
			to = appendNumber(to, p.number)
		case isWord(p.text):
			to = append(to, p.text...)
		default:
			to = strconv.AppendQuoteToASCII(to, p.text)
		}
	}
	return to
}

// appendNumber appends a whole number, or nine significant digits, without an exponent.
func appendNumber(to []byte, v float64) []byte {
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.AppendInt(to, int64(v), 10)
	}
	var digits [32]byte
	rounded, err := strconv.ParseFloat(string(strconv.AppendFloat(digits[:0], v, 'g', 9, 64)), 64)
	if err != nil { // rounded up beyond the largest number
		rounded = v
	}
	return strconv.AppendFloat(to, rounded, 'f', -1, 64)
}

// isWord reports whether the text form shows a text without quotes: it has no character with a
// meaning in the text form, and does not look like a number.
func isWord(text string) bool {
	for i := range len(text) {
		if c := text[i]; !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._/:+%#", c) >= 0) {
			return false
		}
	}
	_, number := parseNumber(text)
	return text != "" && !number
}

func parseNumber(text string) (v float64, ok bool) {
	if text == "" || text[0] != '-' && (text[0] < '0' || text[0] > '9') {
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil && !math.IsInf(v, 0)
}

// Parse parses the text form.
func Parse(text string) (Reason, error) {
	if text == "" {
		return Reason{}, nil
	}
	code, rest, more := strings.Cut(text, "; ")
	if !isCode(code) {
		return Reason{}, fmt.Errorf("%.100q is not a reason, expected CODE; KEY=VALUE; …", text)
	}
	r := Reason{Code: Code(code)}
	for more {
		key, value, found := strings.Cut(rest, "=")
		if !found || !isKey(key) || r.has(key) {
			return Reason{}, fmt.Errorf("%.100q is not a parameter of a reason, expected KEY=VALUE, and each key once", rest)
		}
		var p Param
		p, rest, more = parseValue(key, value)
		if p.Key == "" {
			return Reason{}, fmt.Errorf("%s: %.100q is not the value of a parameter, expected a number, a word or a quoted text", key, value)
		}
		r.Params = append(r.Params, p)
	}
	return r, nil
}

// parseValue parses the value at the beginning of a text, and returns what follows a semicolon
// behind it. It returns the zero Param for an invalid value.
func parseValue(key, text string) (p Param, rest string, more bool) {
	quoted, err := strconv.QuotedPrefix(text)
	if err == nil && quoted[0] == '"' {
		rest = text[len(quoted):]
		if rest, more = strings.CutPrefix(rest, "; "); rest != "" && !more {
			return Param{}, "", false
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return Param{}, "", false
		}
		return Text(key, value), rest, more
	}
	value, rest, more := strings.Cut(text, "; ")
	if v, ok := parseNumber(value); ok {
		return Number(key, v), rest, more
	}
	if !isWord(value) {
		return Param{}, "", false
	}
	return Text(key, value), rest, more
}

func (r Reason) has(key string) bool {
	return slices.ContainsFunc(r.Params, func(p Param) bool { return p.Key == key })
}

// isCode reports whether a text is in kebab case.
func isCode(text string) bool { return isName(text, '-') }

// isKey reports whether a text is in snake case.
func isKey(text string) bool { return isName(text, '_') && text != codeKey }

// isName reports whether a text begins with a letter, consists of lower-case letters, digits and
// single separators, and does not end with a separator.
func isName(text string, separator byte) bool {
	previous := separator
	for i := range len(text) {
		c := text[i]
		letter := c >= 'a' && c <= 'z'
		if !letter && (i == 0 || !(c >= '0' && c <= '9') && (c != separator || previous == separator)) {
			return false
		}
		previous = c
	}
	return previous != separator
}

// codeKey is the key of the code in JSON.
const codeKey = "code"

// MarshalJSON returns an object with the code and the parameters, or null for the zero Reason.
func (r Reason) MarshalJSON() ([]byte, error) {
	if r.IsZero() {
		return []byte("null"), nil
	}
	to := append(make([]byte, 0, 64), `{"code":"`...)
	to = append(append(to, r.Code...), '"')
	for _, p := range r.Params {
		to = append(append(append(to, `,"`...), p.Key...), `":`...)
		if !p.isText {
			to = appendNumber(to, p.number)
			continue
		}
		text, err := json.Marshal(p.text)
		if err != nil {
			return nil, err
		}
		to = append(to, text...)
	}
	return append(to, '}'), nil
}

// UnmarshalJSON parses what MarshalJSON returns. The order of the parameters stays the same.
func (r *Reason) UnmarshalJSON(data []byte) error {
	*r = Reason{}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	token, err := dec.Token()
	if err != nil || token == nil {
		return err
	}
	if token != json.Delim('{') {
		return errors.New("a reason is an object")
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		value, err := dec.Token()
		if err != nil {
			return err
		}
		if err := r.set(key.(string), value); err != nil { // keys of objects are strings
			return err
		}
	}
	if r.IsZero() {
		return errors.New("a reason has no code")
	}
	return nil
}

// set adds a key of the JSON form.
func (r *Reason) set(key string, value json.Token) error {
	switch value := value.(type) {
	case string:
		if key == codeKey && isCode(value) && r.IsZero() {
			r.Code = Code(value)
			return nil
		}
		if isKey(key) && !r.has(key) {
			r.Params = append(r.Params, Text(key, value))
			return nil
		}
	case json.Number:
		if v, err := value.Float64(); err == nil && isKey(key) && !r.has(key) {
			r.Params = append(r.Params, Number(key, v))
			return nil
		}
	}
	return fmt.Errorf("%.100q is not a parameter of a reason, expected a number or a text, and each key once", key)
}
