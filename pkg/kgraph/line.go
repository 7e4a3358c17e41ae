package kgraph

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Place is the line of a problem with a text and, where that is no JSON, the column:
// the place of a character in its line, from 1. Otherwise the column is 0.
func (p *Problem) Place(text []byte) (line, column int) {
	if p.offset == 0 {
		return Line(text, p.Where), 0
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	before := text[:min(p.offset, int64(len(text)))-1]
	begin := bytes.LastIndexByte(before, '\n') + 1
	return 1 + bytes.Count(before, []byte("\n")), 1 + utf8.RuneCount(before[begin:])
}

// Line is the line of a text where the value of a JSON pointer begins or, when the
// text has no such value, the nearest one that would contain it.
func Line(text []byte, pointer string) int {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	l := &locator{dec: json.NewDecoder(bytes.NewReader(text)), want: pointer}
	l.value("", 0)
	return 1 + bytes.Count(text[:l.found], []byte("\n"))
}

type locator struct {
	dec    *json.Decoder
	want   string
	found  int64
	broken bool
}

// value reads one value; at is its pointer.
func (l *locator) value(at string, depth int) {
	tok, err := l.dec.Token()
	if err != nil || depth > MaxNesting {
		l.broken = true
		return
	}
	if l.want == at || strings.HasPrefix(l.want, at+"/") {
		l.found = l.dec.InputOffset()
	}
	switch tok {
	case json.Delim('{'):
		for !l.broken && l.dec.More() {
			key, err := l.dec.Token()
			name, ok := key.(string)
			if err != nil || !ok {
				l.broken = true
				return
			}
			l.value(at+"/"+Pointer(name), depth+1)
		}
	case json.Delim('['):
		for i := 0; !l.broken && l.dec.More(); i++ {
			l.value(at+"/"+strconv.Itoa(i), depth+1)
		}
	default:
		return
	}
	if !l.broken {
		_, err := l.dec.Token()
		l.broken = err != nil
	}
}
