package fields

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// object returns the fields of a JSON object. It parses other values only as far as needed to find
// their ends.
func object(in reader) (Found, error) {
	f := Found{encode: encodeJSON}
	if c, err := in.next(); err != nil || c != '{' {
		return f, errors.Join(errors.New(`expected an object like {"model": "NAME"}`), unlessEOF(err))
	}
	for first := true; ; first = false {
		key, value, err := in.member(first)
		switch {
		case errors.Is(err, io.EOF) && len(f.Models) == 0:
			return f, errors.New(`the object has no key "model"`)
		case errors.Is(err, io.EOF):
			return f, nil
		case err == nil && key == "model" && value != '"':
			return f, errNoName
		case err == nil && key == "model":
			at := in.at() - 1 // the quote
			text, ok, err := in.text()
			if err != nil || !ok || len(text) > maxModel {
				return f, errors.Join(errNoName, err)
			}
			if err := f.add(text, in.since(at)); err != nil {
				return f, err
			}
		case err == nil && key == "stream":
			f.Stream = value == 't'
			err = in.skip(value)
		case err == nil:
			err = in.skip(value)
		}
		if err != nil && len(f.Models) > 0 { // the function reports the error in the rest
			return f, nil
		}
		if err != nil {
			return f, err
		}
	}
}

func unlessEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// member returns the next key and the first byte of its value. The key may be empty if it
// cannot be one that counts. At the end of the object, the error is io.EOF.
func (r reader) member(first bool) (key string, value byte, err error) {
	c, err := r.next()
	if err == nil && c == '}' {
		return "", 0, io.EOF
	}
	if err == nil && !first {
		if c != ',' {
			return "", 0, fmt.Errorf("expected , or }, got %q", c)
		}
		c, err = r.next()
	}
	if err == nil && c != '"' {
		return "", 0, fmt.Errorf("expected a key, got %q", c)
	}
	if err == nil {
		key, _, err = r.text()
	}
	if err == nil {
		if c, err = r.next(); err == nil && c != ':' {
			return "", 0, fmt.Errorf("expected :, got %q", c)
		}
	}
	if err == nil {
		value, err = r.next()
	}
	return key, value, unexpected(err)
}

// unexpected returns the error to report for a failed read within an object.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the object is incomplete")
	}
	return err
}

// text returns a string after its opening quote. ok is false if the string is malformed or
// longer than a model's name can be.
func (r reader) text() (text string, ok bool, err error) {
	raw, err := r.quoted(maxText)
	if err != nil || raw == nil {
		return "", false, err
	}
	if bytes.IndexFunc(raw, func(c rune) bool { return c == '\\' || c < ' ' || c >= utf8.RuneSelf }) < 0 {
		return string(raw[1 : len(raw)-1]), true, nil
	}
	return text, json.Unmarshal(raw, &text) == nil, nil
}

// quoted reads a string after its opening quote. It returns the string with its quotes, or
// nil if that has more than limit bytes.
func (r reader) quoted(limit int) ([]byte, error) {
	raw := append(make([]byte, 0, 32), '"')
	for slashes := 0; ; {
		part, err := r.ReadSlice('"')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, unexpected(err)
		}
		if len(raw)+len(part) > limit {
			raw = nil
		}
		if raw != nil {
			raw = append(raw, part...)
		}
		text := bytes.TrimSuffix(part, []byte{'"'})
		n := len(text) - len(bytes.TrimRight(text, `\`))
		if n == len(text) {
			n += slashes // continues the run of backslashes from the previous part
		}
		switch slashes = n; {
		case err == nil && slashes%2 == 0:
			return raw, nil
		case err == nil:
			slashes = 0 // the quote was escaped
		}
	}
}

// skip reads to the end of a value that begins with the byte first.
func (r reader) skip(first byte) error {
	depth := 0
	for c := first; ; {
		switch c {
		case '"':
			if _, err := r.quoted(0); err != nil {
				return err
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if depth == 0 {
			break
		}
		var err error
		if c, err = r.ReadByte(); err != nil {
			return unexpected(err)
		}
	}
	switch first {
	case '"', '{', '[':
		return nil
	}
	for { // a number, true, false or null
		c, err := r.ReadByte()
		if err != nil {
			return unexpected(err)
		}
		if strings.IndexByte(",}] \t\n\r", c) >= 0 {
			return r.UnreadByte()
		}
	}
}
