package textfile

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// endless is a file without an end. It counts the bytes read from it.
type endless struct {
	text string
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], e.text)
	}
	e.read += n
	return n, nil
}

func TestReadAllIsBounded(t *testing.T) {
	const line, total = 1 << 16, 1 << 18
	for text, want := range map[string]string{
		"\x00":         "f:1: not a text file, expected CSV in UTF-8",
		"\xff":         "f:1: not a text file, expected CSV in UTF-8",
		"a":            "f:1: the line has more than 65536 bytes, expected at most that",
		"a,b\n":        "f:65537: the file has more than 262144 bytes, expected at most that",
		"\n":           "the file has more than 262144 bytes",
		"ab\n\n\xe2\n": "f:1: not a text file",
	} {
		e := &endless{text: text}
		_, err := ReadAll(e, &Checker{Name: "f", Is: "CSV", Line: line, Total: total})
		var fault *Fault
		if !errors.As(err, &fault) || !strings.Contains(err.Error(), want) || e.read > 2*total {
			t.Errorf("%q: %v after %d bytes, want %s", text, err, e.read, want)
		}
	}
}

func TestReadAll(t *testing.T) {
	check := func() *Checker { return &Checker{Name: "f", Is: "CSV", Line: 8, Total: 24} }
	for text, want := range map[string]string{
		"":                         "",
		"\uFEFFa,ü\n":              "a,ü\n",
		"1234567\n1234567\n€€1\n":  "1234567\n1234567\n€€1\n",
		"1234567\n1234567\n123456": "1234567\n1234567\n123456",
	} {
		got, err := ReadAll(iotest.OneByteReader(strings.NewReader(text)), check())
		if err != nil || string(got) != want {
			t.Errorf("%q: %q, %v; want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"12345678\n":          "f:1: the line has more than 8 bytes",
		"a\n12345678\n":       "f:2: the line has more than 8 bytes",
		"a\nb\xe2\x82":        "f:1: not a text file",
		"a\nb\xe2\x82\n":      "f:1: not a text file",
		"a\n\x80":             "f:1: not a text file",
		"\xff\xfea\x00\n\x00": "f:1: not a text file",
	} {
		if _, err := ReadAll(iotest.OneByteReader(strings.NewReader(text)), check()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"\xff\xfea\x00\n\x00": "UTF-16", "\xfe\xff\x00a": "UTF-16", "\xff\xfe": "UTF-16",
		"\xff\xfe\x00\x00a\x00\x00\x00": "UTF-32", "\x00\x00\xfe\xff\x00\x00\x00a": "UTF-32",
	} {
		if _, err := ReadAll(strings.NewReader(text), check()); err == nil || !strings.Contains(err.Error(), "f:1: the file is in "+want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := ReadAll(iotest.ErrReader(io.ErrNoProgress), check()); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("what cannot be read: %v", err)
	}
}
