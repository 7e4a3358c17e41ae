package kgraph

import (
	"encoding/base64"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// tokens reads JSON token by token, and reports problems with their places. It continues after a problem,
// except after a JSON syntax error or excessive nesting.
type tokens struct {
	dec      *jsontext.Decoder
	broken   bool // nothing more can be read
	problems problems
}

func (t *tokens) fail(format string, args ...any) {
	t.problems.add(BadRequest, string(t.dec.StackPointer()), format, args...)
}

// stop reports a problem at a place, after which nothing more can be read. offset becomes the offset of the
// problem; it is 0 for errors other than those of syntax.
func (t *tokens) stop(offset int64, where jsontext.Pointer, format string, args ...any) {
	t.problems.add(BadRequest, string(where), format, args...)
	t.problems[len(t.problems)-1].offset = offset
	t.broken = true
}

// token returns the next token, or the zero Token after a fatal problem.
func (t *tokens) token() jsontext.Token {
	if t.broken {
		return jsontext.Token{}
	}
	tok, err := t.dec.ReadToken()
	syntax, _ := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case err == nil && t.dec.StackDepth() <= MaxNesting:
		return tok
	case err == nil:
		t.stop(0, t.dec.StackPointer(), "nested too deeply, expected at most %d levels", MaxNesting)
	case syntax == nil: // the text ends
		t.stop(MaxRequest, "", "unexpected end of the text, expected JSON")
	case errors.Is(err, io.ErrUnexpectedEOF):
		t.stop(MaxRequest, syntax.JSONPointer, "unexpected end of the text, expected JSON")
	default:
		where := syntax.JSONPointer
		if kind, n := t.dec.StackIndex(t.dec.StackDepth()); kind == jsontext.KindBeginArray {
			where = where.AppendToken(strconv.FormatInt(n, 10))
		}
		t.stop(syntax.ByteOffset+1, where, "%v, expected JSON", syntax.Err)
	}
	return jsontext.Token{}
}

// more reports whether the object or the list has a further value, or a syntax error.
func (t *tokens) more() bool {
	kind := t.dec.PeekKind()
	return !t.broken && kind != jsontext.KindEndObject && kind != jsontext.KindEndArray
}

// skip skips the next value.
func (t *tokens) skip() { t.skipAfter(t.token().Kind()) }

// skipAfter skips the rest of a value that starts with a token of that kind.
func (t *tokens) skipAfter(kind jsontext.Kind) {
	if kind != jsontext.KindBeginObject && kind != jsontext.KindBeginArray {
		return
	}
	for end := t.dec.StackDepth() - 1; !t.broken && t.dec.StackDepth() > end; {
		t.token()
	}
}

// wrong reports that a value has the wrong type, and skips it.
func (t *tokens) wrong(tok jsontext.Token, expected string) {
	if !t.broken {
		t.fail("%s, expected %s", describe(tok), expected)
		t.skipAfter(tok.Kind())
	}
}

func describe(tok jsontext.Token) string {
	switch text := tok.String(); tok.Kind() {
	case jsontext.KindBeginObject:
		return "an object"
	case jsontext.KindBeginArray:
		return "a list"
	case jsontext.KindString:
		return strconv.Quote(text[:min(len(text), 40)])
	default:
		return shorten(text)
	}
}

func shorten(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

// object reads an object. It calls field for each key; field reads the value, or returns false for an
// unknown key. object returns the keys, or nil if the value is not an object.
func (t *tokens) object(expected string, field func(key string) bool) (keys map[string]bool) {
	if tok := t.token(); tok.Kind() != jsontext.KindBeginObject {
		t.wrong(tok, expected)
		return nil
	}
	keys = map[string]bool{}
	for t.more() {
		tok := t.token()
		if t.broken {
			return keys
		}
		key := tok.String()
		if len(key) > MaxName { // no valid key is that long; a place without it is short
			t.problems.add(BadRequest, string(t.dec.StackPointer().Parent()),
				"the key %q has %d bytes, expected at most %d", shorten(key), len(key), MaxName)
			t.skip()
			continue
		}
		switch {
		case keys[key]:
			t.fail("the key is given twice, expected once")
			t.skip()
		case !field(key):
			t.fail("unknown key")
			t.skip()
		}
		keys[key] = true
	}
	t.token()
	return keys
}

// list reads a list of at most limit values. It returns false if the value is not a list.
func (t *tokens) list(expected string, limit int, element func(i int)) bool {
	if tok := t.token(); tok.Kind() != jsontext.KindBeginArray {
		t.wrong(tok, expected)
		return false
	}
	i := 0
	for ; t.more(); i++ {
		if i < limit {
			element(i)
		} else {
			t.skip()
		}
	}
	t.token()
	if i > limit && !t.broken {
		t.problems.add(TooLarge, string(t.dec.StackPointer()), "%d values, expected at most %d", i, limit)
	}
	return true
}

func (t *tokens) text(expected string) string {
	tok := t.token()
	if tok.Kind() != jsontext.KindString {
		t.wrong(tok, expected)
		return ""
	}
	return tok.String()
}

func (t *tokens) bool() bool {
	tok := t.token()
	kind := tok.Kind()
	if kind != jsontext.KindTrue && kind != jsontext.KindFalse {
		t.wrong(tok, "true or false")
	}
	return kind == jsontext.KindTrue
}

// digits returns the text of a number, or "" for any other value.
func digits(tok jsontext.Token) string {
	if tok.Kind() != jsontext.KindNumber {
		return ""
	}
	return tok.String()
}

// integer reads an integer from lowest to highest.
func (t *tokens) integer(lowest, highest int64) int64 {
	tok := t.token()
	if v, err := strconv.ParseInt(digits(tok), 10, 64); err == nil && v >= lowest && v <= highest {
		return v
	}
	t.wrong(tok, "a whole number from "+strconv.FormatInt(lowest, 10)+" to "+strconv.FormatInt(highest, 10))
	return 0
}

// count reads an integer from 1 to limit. A larger value is a TooLarge problem.
func (t *tokens) count(limit int64) int64 {
	tok := t.token()
	switch v, err := strconv.ParseInt(digits(tok), 10, 64); {
	case err == nil && v > limit:
		t.problems.add(TooLarge, string(t.dec.StackPointer()), "%d, expected at most %d", v, limit)
	case err == nil && v >= 1:
		return v
	default:
		t.wrong(tok, "a whole number from 1 to "+strconv.FormatInt(limit, 10))
	}
	return 1
}

func (t *tokens) unsigned() uint64 {
	tok := t.token()
	v, err := strconv.ParseUint(digits(tok), 10, 64)
	if err != nil {
		t.wrong(tok, "a whole number from 0 to 18446744073709551615")
	}
	return v
}

func (t *tokens) real(bits int) float64 {
	tok := t.token()
	v, err := strconv.ParseFloat(digits(tok), bits)
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
		t.problems.add(TooLarge, string(t.dec.StackPointer()), "more than %d bytes", limit)
		return nil
	}
	data, err := base64.StdEncoding.Strict().DecodeString(s)
	switch {
	case err != nil || strings.ContainsAny(s, "\r\n"):
		t.fail("invalid base64, expected it with padding and without line breaks")
	case len(data) > limit:
		t.problems.add(TooLarge, string(t.dec.StackPointer()), "%d bytes, expected at most %d", len(data), limit)
	}
	return data
}
