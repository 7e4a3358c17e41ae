package kserve

import (
	"bytes"
	"strconv"
)

// scanner reads the values of a valid JSON text, one after another.
type scanner struct {
	text []byte
	at   int
}

// peek returns the first byte of the next value, or the bracket that ends the current array or object. It returns 0 at
// the end of the text.
func (s *scanner) peek() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\r', '\n', ',', ':': // in valid text, a separator can be skipped like a blank
		default:
			return c
		}
	}
	return 0
}

// value returns the text of the next value.
func (s *scanner) value() []byte {
	first := s.peek()
	start := s.at
	switch first {
	case '"':
		s.skipString()
	case '[', '{':
		s.skipNested()
	default:
		for s.at < len(s.text) && !bytes.ContainsRune([]byte(" \t\r\n,:]}"), rune(s.text[s.at])) {
			s.at++
		}
	}
	return s.text[start:s.at]
}

func (s *scanner) skipString() {
	for s.at++; s.text[s.at] != '"'; s.at++ {
		if s.text[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
}

func (s *scanner) skipNested() {
	for depth := 0; ; {
		switch s.text[s.at] {
		case '"':
			s.skipString()
			continue
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		}
		if s.at++; depth == 0 {
			return
		}
	}
}

// field is a member of a JSON object.
type field struct {
	name  string // with its quotes and escapes, as in the text
	value []byte
}

// fields returns the members of an object. It returns false for a value that is not an object.
func fields(object []byte) (all []field, ok bool) {
	s := scanner{text: object}
	if s.peek() != '{' {
		return nil, false
	}
	for s.at++; s.peek() != '}'; {
		name := string(s.value())
		all = append(all, field{name, s.value()})
	}
	return all, true
}

// elements returns the values of an array. It returns false for a value that is not an array.
func elements(array []byte) (all [][]byte, ok bool) {
	s := scanner{text: array}
	if s.peek() != '[' {
		return nil, false
	}
	for s.at++; s.peek() != ']'; {
		all = append(all, s.value())
	}
	return all, true
}

// cut returns the texts of consecutive parts of an array, without brackets, given the number of values in each part. It
// returns false if the array has another number of values.
func cut(array []byte, counts []int) (parts [][]byte, ok bool) {
	s := scanner{text: array}
	if s.peek() != '[' {
		return nil, false
	}
	s.at++
	for _, n := range counts {
		start, end := s.at, s.at
		for i := range n {
			if s.peek() == ']' {
				return nil, false
			}
			if i == 0 {
				start = s.at
			}
			s.value()
			end = s.at
		}
		parts = append(parts, s.text[start:end])
	}
	return parts, s.peek() == ']'
}

// maxStructure limits the length of a structure.
const maxStructure = 1 << 10

// structure appends a text that describes the types and dimensions of the next value: n, s, b and z stand for a number,
// a string, a boolean and null. For example, [[1, 2], [3, 4]] has the structure [[n*2]*2]. It returns false if the
// structure would be longer than maxStructure.
func (s *scanner) structure(to []byte) (out []byte, ok bool) {
	switch s.peek() {
	case '[':
		return s.arrayStructure(to)
	case '{':
		to = append(to, '{')
		for s.at++; s.peek() != '}'; {
			to = append(append(to, s.value()...), ':')
			if to, ok = s.structure(to); !ok {
				return to, false
			}
		}
		s.at++
		to = append(to, '}')
	case '"':
		s.value()
		to = append(to, 's')
	case 't', 'f':
		s.value()
		to = append(to, 'b')
	case 'n':
		s.value()
		to = append(to, 'z')
	default:
		s.value()
		to = append(to, 'n')
	}
	return to, len(to) <= maxStructure
}

// arrayStructure is structure for an array. Equal structures in a row are written once, with their number.
func (s *scanner) arrayStructure(to []byte) (out []byte, ok bool) {
	to = append(to, '[')
	start, end, n := len(to), len(to), 0 // the structure that repeats, and how often it did
	count := func(to []byte) []byte {
		if n == 0 {
			return to
		}
		return strconv.AppendInt(append(to, '*'), int64(n), 10)
	}
	for s.at++; s.peek() != ']'; {
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
	s.at++
	to = append(count(to), ']')
	return to, len(to) <= maxStructure
}
