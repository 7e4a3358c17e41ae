package kserve

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Split returns, for each request, the answer to it, as consecutive pieces of text, given the answer to the merged
// request (Merge). The pieces refer to the answer's text. Split fails if it is not certain which part of the answer
// belongs to which request.
//
// In v1, all arrays of the answer are split; predictions, or explanations, must be one of them. In v2, all outputs are
// split, and an answer has the id of its request. Other members are copied to each answer, unless they contain arrays,
// which may hold results of other requests.
func Split(answer []byte, requests []*Request) ([][][]byte, error) {
	if !jsontext.Value(answer).IsValid() {
		return nil, fmt.Errorf("it is not valid JSON")
	}
	all, ok := fields(answer)
	if !ok {
		return nil, fmt.Errorf("it is not a JSON object")
	}
	s := splitter{requests: requests, answers: make([][][]byte, len(requests))}
	for _, r := range requests {
		s.sizes = append(s.sizes, r.size)
		s.total += r.size
	}
	split := s.splitV1
	if requests[0].v2 {
		split = s.splitV2
	}
	if err := split(all); err != nil {
		return nil, err
	}
	return s.answers, nil
}

// splitter builds the answers to several requests.
type splitter struct {
	requests []*Request
	sizes    []int // of the requests
	total    int
	answers  [][][]byte
}

// add appends a text to all answers.
func (s *splitter) add(texts ...string) {
	text := []byte(strings.Join(texts, ""))
	for i := range s.answers {
		s.answers[i] = append(s.answers[i], text)
	}
}

// addOther appends a member to all answers. It fails if the member contains an array.
func (s *splitter) addOther(f field) error {
	if containsArray(f.value) {
		return fmt.Errorf("%s contains an array, which may have results of single requests", f.name)
	}
	s.add(f.name, ":", string(f.value))
	return nil
}

// containsArray reports whether a value is or contains an array.
func containsArray(value []byte) bool {
	switch value[0] {
	case '[':
		return true
	case '{':
		all, _ := fields(value)
		return slices.ContainsFunc(all, func(f field) bool { return containsArray(f.value) })
	}
	return false
}

func (s *splitter) splitV1(all []field) error {
	found := false
	for i, f := range all {
		s.add(separator(i))
		if f.value[0] != '[' {
			if err := s.addOther(f); err != nil {
				return err
			}
			continue
		}
		parts, ok := cut(f.value, s.sizes)
		if !ok {
			values, _ := elements(f.value)
			return fmt.Errorf("%s has %d values", f.name, len(values))
		}
		found = found || f.name == `"predictions"` || f.name == `"explanations"`
		s.add(f.name, ":[")
		for i, part := range parts {
			s.answers[i] = append(s.answers[i], part)
		}
		s.add("]")
	}
	if !found {
		return fmt.Errorf(`it has no array "predictions"`)
	}
	s.add("}")
	return nil
}

// separator returns the text before the member or value number i of an object.
func separator(i int) string {
	if i == 0 {
		return "{"
	}
	return ","
}

func (s *splitter) splitV2(all []field) error {
	all = slices.DeleteFunc(all, func(f field) bool { return f.name == `"id"` })
	found := false
	for i, f := range all {
		s.add(separator(i))
		if f.name != `"outputs"` {
			if err := s.addOther(f); err != nil {
				return err
			}
			continue
		}
		outputs, ok := elements(f.value)
		if !ok {
			return fmt.Errorf("outputs is not an array")
		}
		found = true
		s.add(f.name, ":[")
		for i, output := range outputs {
			if i > 0 {
				s.add(",")
			}
			if err := s.splitOutput(output); err != nil {
				return fmt.Errorf("outputs[%d]: %w", i, err)
			}
		}
		s.add("]")
	}
	if !found {
		return fmt.Errorf("it has no outputs")
	}
	for i, r := range s.requests {
		if r.id != nil {
			s.answers[i] = append(s.answers[i], []byte(`,"id":`), r.id)
		}
	}
	s.add("}")
	return nil
}

// splitOutput splits a tensor of the answer along its first dimension.
func (s *splitter) splitOutput(text []byte) error {
	all, ok := fields(text)
	if !ok {
		return fmt.Errorf("it is not an object")
	}
	shape, data := member(all, `"shape"`), member(all, `"data"`)
	sizes, rest, ok := parseShape(shape, 0)
	switch {
	case !ok:
		return fmt.Errorf("the shape %.40q is not a list of dimensions", shape)
	case sizes[0] != s.total:
		return fmt.Errorf("the first dimension is %d", sizes[0])
	}
	parts, ok := s.cutTensor(data, sizes)
	if !ok {
		return fmt.Errorf("the number of values in the data does not match the shape %s", shape)
	}
	for i, f := range all {
		s.add(separator(i))
		switch f.name {
		case `"shape"`:
			s.add(f.name, ":[")
			for i, size := range s.sizes {
				s.answers[i] = append(s.answers[i], strconv.AppendInt(nil, int64(size), 10), rest)
			}
			s.add("]")
		case `"data"`:
			s.add(f.name, ":[")
			for i, part := range parts {
				s.answers[i] = append(s.answers[i], part)
			}
			s.add("]")
		default:
			if err := s.addOther(f); err != nil {
				return err
			}
		}
	}
	s.add("}")
	return nil
}

// member returns the value of an object's member, or nil.
func member(all []field, name string) []byte {
	for _, f := range all {
		if f.name == name {
			return f.value
		}
	}
	return nil
}

// cutTensor cuts the data of a tensor, a flat list of all values or nested lists.
func (s *splitter) cutTensor(data []byte, sizes []int) (parts [][]byte, ok bool) {
	values := newScanner(data)
	if !values.open('[') {
		return nil, false
	}
	row := product(sizes[1:])
	if values.PeekKind() == '[' {
		row = 1
	}
	counts := make([]int, len(s.sizes))
	for i, size := range s.sizes {
		counts[i] = size * row
	}
	return cut(data, counts)
}
