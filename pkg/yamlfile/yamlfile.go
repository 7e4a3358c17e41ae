// Package yamlfile reads the documents of YAML files, and finds where their syntax is
// wrong: the library names the line that what it was reading began on, or none.
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

// Decode reads the next document; the error is io.EOF behind the last. The library's
// scanner is known to panic on some malformed input; that is a fault of the file like
// any other.
func Decode(dec *yaml.Decoder, doc *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	return dec.Decode(doc)
}

// Check reads all documents of a file, and returns what is wrong with its syntax as a
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

// maxSearched is the largest file, in bytes, that a fault's line is looked for in.
const maxSearched = 128 << 10

// Fault is an error of Decode's as a *textfile.Fault with the line from which on the file
// is wrong: without it and what follows it is right, or wrong in another way.
func Fault(data []byte, name string, err error) error {
	line, what := split(err)
	if len(data) <= maxSearched {
		line = find(data, what, line)
	}
	return &textfile.Fault{File: name, Line: line, What: what + ", expected YAML"}
}

// lookedAhead is how many lines a list may have, between brackets, so that it is not
// taken for one without an end.
const lookedAhead = 64

// find looks for the first line with which and all after it the file is wrong so.
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
		// What goes over many lines is wrong in its middle, and right again at its end.
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

// split is the line of an error, 1 where it names none, and what it says.
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
