package api

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
	maxModel    = 256       // limit on a model's name, in bytes
	maxPartHead = 64 << 10  // limit on the head of a form's part, in bytes
	maxText     = 6*256 + 2 // bytes of a JSON string of up to 256 escaped characters
)

// modelIn returns the model that a body names: the value of a JSON object's key model, or
// of a form's field model. If there are several, the last one counts, as in most servers.
// modelIn uses little memory. It reads the body to its end unless an error occurs first.
func modelIn(body io.Reader, contentType string) (string, error) {
	kind, parameters, err := mime.ParseMediaType(contentType)
	if err == nil && kind == "multipart/form-data" {
		return modelInForm(body, parameters["boundary"])
	}
	return modelInObject(body)
}

// modelInForm returns the last field named model of a form, ignoring files of that name.
func modelInForm(body io.Reader, boundary string) (name string, err error) {
	in := &bounded{from: body}
	form := multipart.NewReader(in, boundary)
	for found := false; ; {
		in.remaining = maxPartHead
		part, err := form.NextPart()
		switch {
		case errors.Is(err, errPartHead):
			return "", err
		case err != nil && found: // the function reports the error in the rest
			return name, nil
		case err != nil:
			return "", errors.Join(errors.New(`the form has no field "model"`), err)
		}
		in.remaining = -1
		_, parameters, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if _, file := parameters["filename"]; !file && part.FormName() == "model" {
			text, err := io.ReadAll(io.LimitReader(part, maxModel+1))
			if err != nil || len(text) > maxModel {
				return "", errors.Join(errNoName, err)
			}
			name, found = string(text), true
		}
		_, _ = io.Copy(io.Discard, part) // NextPart returns the same error
	}
}

var (
	errPartHead = fmt.Errorf("the head of a part is larger than %d KiB", maxPartHead>>10)
	errNoName   = errors.New(`"model" is not a name`)
)

// bounded reads at most remaining bytes and then fails with errPartHead. A negative value of
// remaining means no bound.
type bounded struct {
	from      io.Reader
	remaining int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.remaining < 0 {
		return b.from.Read(p)
	}
	if b.remaining == 0 {
		return 0, errPartHead
	}
	n, err := b.from.Read(p[:min(len(p), b.remaining)])
	b.remaining -= n
	return n, err
}

// modelInObject returns the string at the last key model of a JSON object. It parses other
// values only as far as needed to find their ends.
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
			return "", errors.New(`the object has no key "model"`)
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
		if err != nil && found { // the function reports the error in the rest
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

// objectReader reads the members of a JSON object one by one.
type objectReader struct{ in *bufio.Reader }

// next returns the next byte that is not white space.
func (r objectReader) next() (byte, error) {
	for {
		c, err := r.in.ReadByte()
		if err != nil || c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c, err
		}
	}
}

// member returns the next key and the first byte of its value. The key may be empty if it
// cannot be model. At the end of the object, the error is io.EOF.
func (r objectReader) member(first bool) (key string, value byte, err error) {
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

// quoted reads a string after its opening quote. It returns the string with its quotes, or
// nil if that has more than limit bytes.
func (r objectReader) quoted(limit int) ([]byte, error) {
	raw := append(make([]byte, 0, 32), '"')
	for slashes := 0; ; {
		part, err := r.in.ReadSlice('"')
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
