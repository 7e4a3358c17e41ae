package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"strings"
	"unicode/utf8"
)

const (
	maxModel    = 256       // bytes of a model's name
	maxPartHead = 64 << 10  // bytes of the head of a part of a form
	maxText     = 6*256 + 2 // bytes of a string of up to 256 characters, as JSON may write it
)

// modelIn returns the model that a body names: in an object's key model, or in a form's
// field of that name. If there are several, the last one counts, as in most servers. It
// reads the body to its end, or until it knows better, in little memory.
func modelIn(body io.Reader, contentType string) (string, error) {
	kind, parameters, err := mime.ParseMediaType(contentType)
	if err == nil && kind == "multipart/form-data" {
		return modelInForm(body, parameters["boundary"])
	}
	return modelInObject(body)
}

// modelInForm returns the last field model of a form. A file of that name is no field.
func modelInForm(body io.Reader, boundary string) (name string, err error) {
	in := &bounded{from: body}
	form := multipart.NewReader(in, boundary)
	for found := false; ; {
		in.left = maxPartHead
		part, err := form.NextPart()
		switch {
		case errors.Is(err, errPartHead):
			return "", err
		case err != nil && found: // the function says what is wrong with the rest
			return name, nil
		case err != nil:
			return "", errors.Join(errors.New(`there is no field "model"`), err)
		}
		in.left = -1
		_, parameters, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if _, file := parameters["filename"]; !file && part.FormName() == "model" {
			text, err := io.ReadAll(io.LimitReader(part, maxModel+1))
			if err != nil || len(text) > maxModel {
				return "", errors.Join(errNoName, err)
			}
			name, found = string(text), true
		}
		_, _ = io.Copy(io.Discard, part) // NextPart has the error too
	}
}

var (
	errPartHead = fmt.Errorf("the head of a part is larger than %d KiB", maxPartHead>>10)
	errNoName   = errors.New(`"model" is no name`)
)

// bounded reads so many bytes at most, and then fails with errPartHead. Negative is no
// bound.
type bounded struct {
	from io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left < 0 {
		return b.from.Read(p)
	}
	if b.left == 0 {
		return 0, errPartHead
	}
	n, err := b.from.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// modelInObject returns the string at the last key model of a JSON object. It looks at no
// more of the other values than it takes to find their ends.
func modelInObject(body io.Reader) (name string, err error) {
	in := objectReader{bufio.NewReader(body)}
	if c, err := in.next(); err != nil || c != '{' {
		return "", errors.Join(errors.New(`expected an object like {"model": "NAME"}`), unlessEOF(err))
	}
	found := false
	for first := true; ; first = false {
		key, value, err := in.member(first)
		switch {
		case errors.Is(err, io.EOF) && !found:
			return "", errors.New(`there is no "model"`)
		case errors.Is(err, io.EOF):
			return name, nil
		case err == nil && key == "model" && value != '"':
			return "", errNoName
		case err == nil && key == "model":
			text, ok, err := in.text()
			if err != nil || !ok || len(text) > maxModel {
				return "", errors.Join(errNoName, err)
			}
			name, found = text, true
		case err == nil:
			err = in.skip(value)
		}
		if err != nil && found { // the function says what is wrong with the rest
			return name, nil
		}
		if err != nil {
			return "", err
		}
	}
}

func unlessEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// objectReader reads the members of a JSON object one after the other.
type objectReader struct{ in *bufio.Reader }

// next returns the next byte that is no space.
func (r objectReader) next() (byte, error) {
	for {
		c, err := r.in.ReadByte()
		if err != nil || c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c, err
		}
	}
}

// member returns the next key, if it may be model, and the first byte of its value. At the
// end of the object the error is io.EOF.
func (r objectReader) member(first bool) (key string, value byte, err error) {
	c, err := r.next()
	if err == nil && c == '}' {
		return "", 0, io.EOF
	}
	if err == nil && !first {
		if c != ',' {
			return "", 0, fmt.Errorf("expected , or } and not %q", c)
		}
		c, err = r.next()
	}
	if err == nil && c != '"' {
		return "", 0, fmt.Errorf("expected a key and not %q", c)
	}
	if err == nil {
		key, _, err = r.text()
	}
	if err == nil {
		if c, err = r.next(); err == nil && c != ':' {
			return "", 0, fmt.Errorf("expected : and not %q", c)
		}
	}
	if err == nil {
		value, err = r.next()
	}
	return key, value, unexpected(err)
}

// unexpected returns the error of a read within an object.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the object does not end")
	}
	return err
}

// text returns the string whose opening quote was read; ok is false if it is longer than a
// name can be, or malformed.
func (r objectReader) text() (text string, ok bool, err error) {
	raw, err := r.quoted(maxText)
	if err != nil || raw == nil {
		return "", false, err
	}
	if bytes.IndexFunc(raw, func(c rune) bool { return c == '\\' || c < ' ' || c >= utf8.RuneSelf }) < 0 {
		return string(raw[1 : len(raw)-1]), true, nil
	}
	return text, json.Unmarshal(raw, &text) == nil, nil
}

// quoted reads to the end of a string whose opening quote was read. It returns the string
// with its quotes, or nil if that has more than so many bytes.
func (r objectReader) quoted(most int) ([]byte, error) {
	raw := append(make([]byte, 0, 32), '"')
	for slashes := 0; ; {
		part, err := r.in.ReadSlice('"')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, unexpected(err)
		}
		if len(raw)+len(part) > most {
			raw = nil
		}
		if raw != nil {
			raw = append(raw, part...)
		}
		text := bytes.TrimSuffix(part, []byte{'"'})
		n := len(text) - len(bytes.TrimRight(text, `\`))
		if n == len(text) {
			n += slashes // it goes on from the part before
		}
		switch slashes = n; {
		case err == nil && slashes%2 == 0:
			return raw, nil
		case err == nil:
			slashes = 0 // the quote was escaped
		}
	}
}

// skip reads to the end of a value that begins with this byte.
func (r objectReader) skip(first byte) error {
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
		if c, err = r.in.ReadByte(); err != nil {
			return unexpected(err)
		}
	}
	switch first {
	case '"', '{', '[':
		return nil
	}
	for { // a number, true, false or null
		c, err := r.in.ReadByte()
		if err != nil {
			return unexpected(err)
		}
		if strings.IndexByte(",}] \t\n\r", c) >= 0 {
			return r.in.UnreadByte()
		}
	}
}
