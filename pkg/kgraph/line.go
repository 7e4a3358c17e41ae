package kgraph

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Place returns where a problem is in a text: the line, starting at 1, and for a JSON syntax error the
// column in characters, starting at 1. For other problems the column is 0.
func (p *Problem) Place(text []byte) (line, column int) {
	if p.offset == 0 {
		return Line(text, p.Where), 0
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	before := text[:min(p.offset, int64(len(text)))-1]
	begin := bytes.LastIndexByte(before, '\n') + 1
	return 1 + bytes.Count(before, []byte("\n")), 1 + utf8.RuneCount(before[begin:])
}

// Line returns the line on which the value of a JSON pointer starts. If there is no such value, it
// returns the line of the innermost enclosing value.
func Line(text []byte, pointer string) int {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	dec := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	found := int64(0)
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			break
		}
		at := string(dec.StackPointer())
		begins := tok.Kind() != '}' && tok.Kind() != ']'
		if begins && (pointer == at || strings.HasPrefix(pointer, at+"/")) {
			found = dec.InputOffset()
		}
		if dec.StackDepth() == 0 { // the end of the value
			break
		}
	}
	return 1 + bytes.Count(text[:found], []byte("\n"))
}
