package kgraph

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
)

// tokens reads JSON token by token, and reports problems with their places. It continues after a problem,
// except after a JSON syntax error or excessive nesting.
type tokens struct {
	dec      *json.Decoder
	path     []byte // current position as a JSON pointer
	depth    int
	broken   bool // nothing more can be read
	problems problems
	syntax   *Problem // the JSON syntax error, if any
}

func (t *tokens) fail(format string, args ...any) {
	t.problems.add(BadRequest, string(t.path), format, args...)
}

func (t *tokens) stop(format string, args ...any) {
	if !t.broken {
		t.fail(format, args...)
	}
	t.broken = true
}

// stopNotJSON reports a JSON syntax error.
func (t *tokens) stopNotJSON(format string, args ...any) {
	t.stop(format, args...)
	t.syntax = t.problems[len(t.problems)-1]
}

// token returns the next token, or nil after a fatal problem.
func (t *tokens) token() json.Token {
	if t.broken {
		return nil
	}
	tok, err := t.dec.Token()
	if err != nil {
		text := err.Error()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			text = "unexpected end of the text"
		}
		t.stopNotJSON("%s, expected JSON", text)
		return nil
	}
	switch tok {
	case json.Delim('{'), json.Delim('['):
		if t.depth++; t.depth > MaxNesting {
			t.stop("nested too deeply, expected at most %d levels", MaxNesting)
			return nil
		}
	case json.Delim('}'), json.Delim(']'):
		t.depth--
	}
	return tok
}

func (t *tokens) more() bool { return !t.broken && t.dec.More() }

// skip skips the next value.
func (t *tokens) skip() { t.skipAfter(t.token()) }

// skipAfter skips the rest of a value that starts with tok.
func (t *tokens) skipAfter(tok json.Token) {
	if tok != json.Delim('{') && tok != json.Delim('[') {
		return
	}
	for end := t.depth - 1; !t.broken && t.depth > end; {
		t.token()
	}
}

// wrong reports that a value has the wrong type, and skips it.
func (t *tokens) wrong(tok json.Token, expected string) {
	if !t.broken {
		t.fail("%s, expected %s", describe(tok), expected)
		t.skipAfter(tok)
	}
}

func describe(tok json.Token) string {
	switch v := tok.(type) {
	case json.Delim:
		if v == '{' {
			return "an object"
		}
		return "a list"
	case string:
		return strconv.Quote(v[:min(len(v), 40)])
	case json.Number:
		return shorten(string(v))
	case bool:
		return strconv.FormatBool(v)
	}
	return "null"
}

func shorten(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

// at calls do with step appended to the path.
func (t *tokens) at(step string, do func()) {
	size := len(t.path)
	t.path = append(append(t.path, '/'), Pointer(step)...)
	do()
	t.path = t.path[:size]
}

// object reads an object. It calls field for each key; field reads the value, or returns false for an
// unknown key. object returns the keys, or nil if the value is not an object.
func (t *tokens) object(expected string, field func(key string) bool) (keys map[string]bool) {
	if tok := t.token(); tok != json.Delim('{') {
		t.wrong(tok, expected)
		return nil
	}
	keys = map[string]bool{}
	for t.more() {
		key, ok := t.token().(string)
		if !ok {
			t.stopNotJSON("a key is missing, expected JSON")
			return keys
		}
		if len(key) > MaxName { // no valid key is that long; skipping it keeps paths short
			t.fail("the key %q has %d bytes, expected at most %d", shorten(key), len(key), MaxName)
			t.skip()
			continue
		}
		t.at(key, func() {
			switch {
			case keys[key]:
				t.fail("the key is given twice, expected once")
				t.skip()
			case !field(key):
				t.fail("unknown key")
				t.skip()
			}
		})
		keys[key] = true
	}
	t.token()
	return keys
}

// list reads a list of at most limit values. It returns false if the value is not a list.
func (t *tokens) list(expected string, limit int, element func(i int)) bool {
	if tok := t.token(); tok != json.Delim('[') {
		t.wrong(tok, expected)
		return false
	}
	i := 0
	for ; t.more(); i++ {
		t.at(strconv.Itoa(i), func() {
			if i < limit {
				element(i)
			} else {
				t.skip()
			}
		})
	}
	t.token()
	if i > limit {
		t.problems.add(TooLarge, string(t.path), "%d values, expected at most %d", i, limit)
	}
	return true
}

func (t *tokens) text(expected string) string {
	tok := t.token()
	s, ok := tok.(string)
	if !ok {
		t.wrong(tok, expected)
	}
	return s
}

func (t *tokens) bool() bool {
	tok := t.token()
	b, ok := tok.(bool)
	if !ok {
		t.wrong(tok, "true or false")
	}
	return b
}

// integer reads an integer from lowest to highest.
func (t *tokens) integer(lowest, highest int64) int64 {
	tok := t.token()
	n, _ := tok.(json.Number)
	if v, err := n.Int64(); err == nil && v >= lowest && v <= highest {
		return v
	}
	t.wrong(tok, "a whole number from "+strconv.FormatInt(lowest, 10)+" to "+strconv.FormatInt(highest, 10))
	return 0
}

// count reads an integer from 1 to limit. A larger value is a TooLarge problem.
func (t *tokens) count(limit int64) int64 {
	tok := t.token()
	n, _ := tok.(json.Number)
	switch v, err := n.Int64(); {
	case err == nil && v > limit:
		t.problems.add(TooLarge, string(t.path), "%d, expected at most %d", v, limit)
	case err == nil && v >= 1:
		return v
	default:
		t.wrong(tok, "a whole number from 1 to "+strconv.FormatInt(limit, 10))
	}
	return 1
}

func (t *tokens) unsigned() uint64 {
	tok := t.token()
	n, _ := tok.(json.Number)
	v, err := strconv.ParseUint(string(n), 10, 64)
	if err != nil {
		t.wrong(tok, "a whole number from 0 to 18446744073709551615")
	}
	return v
}

func (t *tokens) real(bits int) float64 {
	tok := t.token()
	n, _ := tok.(json.Number)
	v, err := strconv.ParseFloat(string(n), bits)
	if err != nil {
		t.wrong(tok, "a number that "+strconv.Itoa(bits)+" bits can hold")
	}
	return v
}

// name reads a nonempty name of at most MaxName bytes.
func (t *tokens) name() string {
	s := t.text("a name")
	if !t.broken && (s == "" || len(s) > MaxName) {
		t.fail("a name of %d bytes, expected 1 to %d", len(s), MaxName)
	}
	return s
}

func (t *tokens) base64(limit int) []byte {
	s := t.text("bytes in base64")
	if base64.StdEncoding.DecodedLen(len(s)) > limit+3 {
		t.problems.add(TooLarge, string(t.path), "more than %d bytes", limit)
		return nil
	}
	data, err := base64.StdEncoding.Strict().DecodeString(s)
	switch {
	case err != nil || strings.ContainsAny(s, "\r\n"):
		t.fail("invalid base64, expected it with padding and without line breaks")
	case len(data) > limit:
		t.problems.add(TooLarge, string(t.path), "%d bytes, expected at most %d", len(data), limit)
	}
	return data
}
