// Package yamlfile reads the documents of YAML files and finds the line of a syntax error.
// The YAML library names the line on which the enclosing construct began, or none. Package
// function and commands that read settings use it.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gfaas/gfaas/pkg/textfile"
)

// Decode reads the next document. It returns io.EOF after the last one. The library's
// scanner panics on some malformed input; Decode returns that as an error too.
func Decode(dec *yaml.Decoder, doc *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	return dec.Decode(doc)
}

// Check reads all documents of a file and returns the first syntax error as a
// *textfile.Fault.
func Check(data []byte, name string) error {
	if err := syntax(data); err != nil {
		return Fault(data, name, err)
	}
	return nil
}

func syntax(data []byte) error {
	for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var doc yaml.Node
		switch err := Decode(dec, &doc); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// maxSearched is the largest file, in bytes, in which Fault searches for the line.
const maxSearched = 128 << 10

// Fault returns an error of Decode as a *textfile.Fault. Its line is the first one such
// that the file cut before it has no error, or another error.
func Fault(data []byte, name string, err error) error {
	line, what := split(err)
	if len(data) <= maxSearched {
		line = find(data, what, line)
	}
	return &textfile.Fault{File: name, Line: line, What: what + ", expected YAML"}
}

// lookedAhead is the number of lines within which a bracketed list must close. A longer
// list counts as one whose closing bracket is missing.
const lookedAhead = 64

// find returns the first line from which on every prefix of the file has the error what,
// or otherwise if there is none.
func find(data []byte, what string, otherwise int) int {
	lines := bytes.SplitAfter(data, []byte("\n"))
	wrong := func(n int) bool {
		err := syntax(bytes.Join(lines[:n], nil))
		if err == nil {
			return false
		}
		_, w := split(err)
		return w == what
	}
	if !wrong(len(lines)) {
		return otherwise
	}
	for from := 0; ; {
		first := from + 1 + sort.Search(len(lines)-from-1, func(i int) bool { return wrong(from + 1 + i) })
		// A construct of several lines is incomplete in its middle and correct at its end.
		from = first + 1
		for from <= min(first+lookedAhead, len(lines)) && wrong(from) {
			from++
		}
		if from > min(first+lookedAhead, len(lines)) {
			return first
		}
	}
}

var place = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// split returns the line that an error names, or 1, and the rest of its message.
func split(err error) (line int, what string) {
	text := err.Error()
	line = 1
	if m := place.FindStringSubmatch(text); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil && n > 0 {
			line = n
		}
		text = text[len(m[0]):]
	}
	return line, strings.ReplaceAll(text, "\n", " ")
}
