package kserve

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// scanner reads the values of a valid JSON text, one after another.
type scanner struct {
	*jsontext.Decoder
	text []byte
}

// newScanner returns a scanner of a text that is valid, so the decoder need not look for duplicate names.
func newScanner(text []byte) scanner {
	return scanner{jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true)), text}
}

// open reads the bracket that begins an array or an object. It returns false if another value is next.
func (s scanner) open(bracket jsontext.Kind) bool {
	if s.PeekKind() != bracket {
		return false
	}
	_, err := s.ReadToken()
	return err == nil
}

// more reports whether the current array or object has another value. At its end, it reads the closing bracket.
func (s scanner) more() bool {
	switch s.PeekKind() {
	case ']', '}', 0: // 0 would be an invalid text, which does not occur
		_, _ = s.ReadToken()
		return false
	}
	return true
}

// value returns the text of the next value, and where it begins.
func (s scanner) value() (text []byte, start int) {
	value, _ := s.ReadValue() // the text is valid
	end := int(s.InputOffset())
	start = end - len(value)
	return s.text[start:end], start
}

// field is a member of a JSON object.
type field struct {
	name  string // with its quotes and escapes, as in the text
	value []byte
}

// fields returns the members of an object. It returns false for a value that is not an object.
func fields(object []byte) (all []field, ok bool) {
	s := newScanner(object)
	if !s.open('{') {
		return nil, false
	}
	for s.more() {
		name, _ := s.value()
		value, _ := s.value()
		all = append(all, field{string(name), value})
	}
	return all, true
}

// elements returns the values of an array. It returns false for a value that is not an array.
func elements(array []byte) (all [][]byte, ok bool) {
	s := newScanner(array)
	if !s.open('[') {
		return nil, false
	}
	for s.more() {
		value, _ := s.value()
		all = append(all, value)
	}
	return all, true
}

// cut returns the texts of consecutive parts of an array, without brackets, given the number of values in each part. It
// returns false if the array has another number of values.
func cut(array []byte, counts []int) (parts [][]byte, ok bool) {
	s := newScanner(array)
	if !s.open('[') {
		return nil, false
	}
	for _, n := range counts {
		start := int(s.InputOffset())
		for i := range n {
			if !s.more() {
				return nil, false
			}
			if _, at := s.value(); i == 0 {
				start = at
			}
		}
		parts = append(parts, array[start:s.InputOffset()])
	}
	return parts, !s.more()
}

// maxStructure limits the length of a structure.
const maxStructure = 1 << 10

// types maps the kinds of values other than arrays and objects to their letters in a structure.
var types = [256]byte{'"': 's', 't': 'b', 'f': 'b', 'n': 'z', '0': 'n'}

// structure appends a text that describes the types and dimensions of the next value: n, s, b and z stand for a number,
// a string, a boolean and null. For example, [[1, 2], [3, 4]] has the structure [[n*2]*2]. It returns false if the
// structure would be longer than maxStructure.
func (s scanner) structure(to []byte) (out []byte, ok bool) {
	switch {
	case s.open('['):
		return s.arrayStructure(to)
	case s.open('{'):
		to = append(to, '{')
		for s.more() {
			name, _ := s.value()
			to = append(append(to, name...), ':')
			if to, ok = s.structure(to); !ok {
				return to, false
			}
		}
		to = append(to, '}')
	default:
		to = append(to, types[s.PeekKind()])
		_, _ = s.ReadToken() // the text is valid
	}
	return to, len(to) <= maxStructure
}

// arrayStructure is structure for an array that has been opened. Equal structures in a row are written once, with their number.
func (s scanner) arrayStructure(to []byte) (out []byte, ok bool) {
	to = append(to, '[')
	start, end, n := len(to), len(to), 0 // the structure that repeats, and how often it did
	count := func(to []byte) []byte {
		if n == 0 {
			return to
		}
		return strconv.AppendInt(append(to, '*'), int64(n), 10)
	}
	for s.more() {
		if to, ok = s.structure(to); !ok {
			return to, false
		}
		if n > 0 && bytes.Equal(to[start:end], to[end:]) {
			to = to[:end]
			n++
			continue
		}
		next := bytes.Clone(to[end:])
		to = count(to[:end])
		start = len(to)
		to = append(to, next...)
		end, n = len(to), 1
	}
	to = append(count(to), ']')
	return to, len(to) <= maxStructure
}
