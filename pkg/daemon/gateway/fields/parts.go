package fields

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/textproto"
	"strings"
)

// maxBoundary is the longest boundary of a form, in bytes. RFC 2046 allows 70.
const maxBoundary = 256

// form reads the parts of a form in multipart/form-data. mime/multipart does not tell where a part
// is. The tests compare both.
type form struct {
	reader
	dashes  []byte // two dashes and the boundary
	newline string // the line end of the form: that of its first delimiter
}

// parts returns the fields of a form in multipart/form-data. A file is no field.
func parts(in reader, boundary string) (Found, error) {
	f := Found{encode: func(name string) []byte { return []byte(name) }}
	if boundary == "" || len(boundary) > maxBoundary {
		return f, fmt.Errorf("%w, because its boundary is missing or too long", errNoForm)
	}
	r := form{reader: in, dashes: []byte("--" + boundary)}
	more, err := r.first()
	for more && err == nil {
		var head textproto.MIMEHeader
		if head, err = r.head(); err != nil {
			break
		}
		disposition, parameters, _ := mime.ParseMediaType(head.Get("Content-Disposition"))
		name := parameters["name"]
		if _, file := parameters["filename"]; file || disposition != "form-data" {
			name = ""
		}
		at := r.at()
		var text []byte
		var whole bool
		text, whole, more, err = r.content(maxModel)
		switch {
		case err != nil && !errors.Is(err, io.ErrUnexpectedEOF) || name != "model" && name != "stream":
		case name == "stream":
			f.Stream = whole && streams(string(text))
		case !whole:
			return f, errNoName
		case err == nil:
			if err := f.add(string(text), Span{at, int64(len(text))}); err != nil {
				return f, err
			}
		}
	}
	switch {
	case errors.Is(err, errPartHead):
		return f, err
	case len(f.Models) > 0:
		return f, nil
	case err != nil:
		return f, errors.Join(errNoForm, err)
	}
	return f, errNoForm
}

var (
	errPartHead = fmt.Errorf("the head of a part is larger than %d KiB", maxPartHead>>10)
	errPart     = errors.New("a part of the form is malformed")
)

// delimiter is the kind of a line of a form.
type delimiter uint8

const (
	noDelimiter   delimiter = iota
	beginsPart              // a part follows
	endsForm                // it is the last delimiter
	malformedPart           // it begins like a delimiter and is none
)

// kind returns the kind of a line, which may be incomplete if it is long or ends the body.
func (r *form) kind(line []byte) delimiter {
	rest, ok := bytes.CutPrefix(line, r.dashes)
	if !ok {
		return noDelimiter
	}
	if after, ok := bytes.CutPrefix(rest, []byte("--")); ok {
		if after = bytes.TrimLeft(after, " \t"); len(after) == 0 || string(after) == r.newline {
			return endsForm
		}
		return malformedPart
	}
	if len(rest) > 0 && strings.IndexByte(" \t\r\n", rest[0]) < 0 {
		return noDelimiter // a longer text than the boundary
	}
	if string(bytes.TrimLeft(rest, " \t")) == r.newline {
		return beginsPart
	}
	return malformedPart
}

// line returns the next line with its end, or the beginning of a long line. At the end of the body,
// err is io.EOF, and line may have a text. The line is valid until the next read.
func (r *form) line() (line []byte, whole bool, err error) {
	line, err = r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return line, false, nil
	}
	return line, true, err
}

// first skips the text before the first delimiter and reports whether a part follows.
func (r *form) first() (more bool, err error) {
	for begins := true; ; {
		line, whole, err := r.line()
		if begins {
			r.newline = "\r\n"
			if bytes.HasPrefix(line, r.dashes) && string(bytes.TrimLeft(line[len(r.dashes):], " \t")) == "\n" {
				r.newline = "\n"
			}
			switch r.kind(line) {
			case beginsPart:
				return true, nil
			case endsForm:
				return false, nil
			}
		}
		if err != nil {
			return false, unexpectedEnd(err)
		}
		begins = whole
	}
}

// unexpectedEnd returns the error to report for a failed read within a form.
func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// head returns the header of a part.
func (r *form) head() (textproto.MIMEHeader, error) {
	var text bytes.Buffer
	for begins := true; ; {
		line, whole, err := r.line()
		if text.Len()+len(line) > maxPartHead {
			return nil, errPartHead
		}
		text.Write(line)
		if err != nil {
			return nil, unexpectedEnd(err)
		}
		if begins && (string(line) == "\r\n" || string(line) == "\n") {
			break
		}
		begins = whole
	}
	head, err := textproto.NewReader(bufio.NewReader(&text)).ReadMIMEHeader()
	if err != nil {
		return nil, errPart
	}
	return head, nil
}

// content reads the content of a part and the delimiter behind it. It returns up to limit bytes of
// the content; whole reports whether these are all, with a line end behind them. more reports whether a
// part follows. At the end
// of the body, the error is io.ErrUnexpectedEOF.
func (r *form) content(limit int) (text []byte, whole, more bool, err error) {
	limit += len(r.newline) // the content may end with the line end of the delimiter
	long := false
	for begins := true; ; {
		line, complete, err := r.line()
		if begins {
			switch r.kind(line) {
			case beginsPart, endsForm:
				text, ended := bytes.CutSuffix(text, []byte(r.newline))
				return text, ended && !long, r.kind(line) == beginsPart, nil
			case malformedPart:
				return text, false, false, errPart
			}
		}
		if keep := min(len(line), limit+1-len(text)); keep > 0 {
			text = append(text, line[:keep]...)
		}
		long = long || len(text) > limit
		if err != nil {
			return text, false, false, unexpectedEnd(err)
		}
		begins = complete && bytes.HasSuffix(line, []byte(r.newline))
	}
}
