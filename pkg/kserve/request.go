// Package kserve merges inference requests into one, and splits its answer. It knows two forms of JSON bodies: KServe's
// protocol v1 ({"instances": [...]}, answered by {"predictions": [...]}) and v2, the Open Inference Protocol ({"inputs":
// [{"name", "shape", "datatype", "data"}]}, answered by {"outputs": [...]}). Requests are merged along the first
// dimension. Values are copied as text, so numbers keep all their digits.
//
// Only requests with equal keys (Request.Key) can be merged: their values must have the same structure, dimensions and
// types, apart from the first dimension, and everything else in the bodies must be equal.
package kserve

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Request is a body that can be merged with others. It refers to the text of the body.
type Request struct {
	v2     bool
	size   int
	other  []byte // the other members of the body, each as "name":value and followed by a comma
	id     []byte // v2: the value of id; nil if there is none
	inputs []tensor
	key    string
}

// tensor is an input of a v2 request. In v1, the instances are the data of a single tensor.
type tensor struct {
	other []byte // the members except shape and data, each followed by a comma
	dims  []byte // the dimensions after the first, each with a leading comma
	data  []byte // the values, without brackets
	form  string // the structure of the data; for a flat list, its type
}

// Size returns the number of inferences that the body requests.
func (r *Request) Size() int { return r.size }

// Key returns the key that bodies must share to be merged.
func (r *Request) Key() string { return r.key }

// Parse returns a body as a Request. It returns nil if the body cannot be merged with others: it has another form, is
// malformed, has values of different structures, belongs to a sequence, or uses an extension for binary data or shared
// memory.
func Parse(body []byte) *Request {
	if !jsontext.Value(body).IsValid() {
		return nil
	}
	all, ok := fields(body)
	if !ok || slices.ContainsFunc(all, func(f field) bool { return strings.ContainsRune(f.name, '\\') }) {
		return nil
	}
	r := Request{v2: slices.ContainsFunc(all, func(f field) bool { return f.name == `"inputs"` })}
	found := 0
	for _, f := range all {
		switch f.name {
		case `"instances"`:
			found++
			ok = ok && r.parseInstances(f.value)
		case `"inputs"`:
			found++
			ok = ok && r.parseInputs(f.value)
		default:
			if r.v2 && f.name == `"id"` {
				r.id = f.value
				continue
			}
			r.other = f.appendTo(r.other)
		}
	}
	if !ok || found != 1 || r.size < 1 {
		return nil
	}
	if r.v2 && slices.ContainsFunc(unmergeable, func(word string) bool { return r.contains(word) }) {
		return nil
	}
	r.key = r.makeKey()
	return &r
}

// unmergeable lists parts of the names of parameters, in v2, with which a request must be sent alone.
var unmergeable = []string{`"sequence_`, "binary_data", "shared_memory"}

func (r *Request) contains(word string) bool {
	return bytes.Contains(r.other, []byte(word)) ||
		slices.ContainsFunc(r.inputs, func(t tensor) bool { return bytes.Contains(t.other, []byte(word)) })
}

// appendTo appends the member, followed by a comma.
func (f field) appendTo(to []byte) []byte {
	to = append(append(to, f.name...), ':')
	return append(append(to, f.value...), ',')
}

// makeKey joins everything that must be equal. Valid JSON contains no zero byte, so different requests have different
// keys.
func (r *Request) makeKey() string {
	var b strings.Builder
	b.WriteString(strconv.FormatBool(r.v2))
	add := func(text []byte) { b.WriteByte(0); b.Write(text) }
	add(r.other)
	for _, t := range r.inputs {
		add(t.other)
		add(t.dims)
		add([]byte(t.form))
	}
	return b.String()
}

// parseInstances parses the instances of a v1 body, which must have one structure.
func (r *Request) parseInstances(list []byte) bool {
	s, t := newScanner(list), tensor{}
	if !s.open('[') {
		return false
	}
	for s.more() {
		form, ok := s.structure(nil)
		if !ok || r.size > 0 && string(form) != t.form {
			return false
		}
		t.form, t.data = string(form), bytes.TrimSpace(list[1:s.InputOffset()])
		r.size++
	}
	r.inputs = []tensor{t}
	return true
}

// parseInputs parses the inputs of a v2 body, whose first dimensions must be equal.
func (r *Request) parseInputs(list []byte) bool {
	inputs, ok := elements(list)
	if !ok || len(inputs) == 0 {
		return false
	}
	for i, text := range inputs {
		t, rows, ok := parseTensor(text)
		if !ok || i > 0 && rows != r.size {
			return false
		}
		r.size = rows
		r.inputs = append(r.inputs, t)
	}
	return true
}

// parseTensor parses an input. rows is its first dimension.
func parseTensor(text []byte) (t tensor, rows int, ok bool) {
	all, ok := fields(text)
	if !ok {
		return t, 0, false
	}
	var shape, data, datatype []byte
	for _, f := range all {
		switch f.name {
		case `"shape"`:
			shape = f.value
		case `"data"`:
			data = f.value
		default:
			if f.name == `"datatype"` {
				datatype = f.value
			}
			t.other = f.appendTo(t.other)
		}
	}
	sizes, dims, ok := parseShape(shape, 1)
	if !ok || data == nil || datatype == nil {
		return t, 0, false
	}
	t.dims = dims
	return t, sizes[0], t.parseData(data, sizes, typeOf(datatype))
}

// typeOf returns the type of the values of a datatype, as in a structure.
func typeOf(datatype []byte) string {
	switch string(datatype) {
	case `"BOOL"`:
		return "b"
	case `"BYTES"`:
		return "s"
	}
	return "n"
}

// parseData checks that the data has the given type and dimensions, either as a flat list of all values or as nested
// lists.
func (t *tensor) parseData(data []byte, sizes []int, kind string) bool {
	form, ok := newScanner(data).structure(nil)
	if !ok || data[0] != '[' {
		return false
	}
	nested := kind
	for _, size := range slices.Backward(sizes) {
		nested = "[" + nested + "*" + strconv.Itoa(size) + "]"
	}
	flat := "[" + kind + "*" + strconv.Itoa(product(sizes)) + "]"
	switch string(form) {
	case flat:
		t.form = kind
	case nested:
		t.form = "nested"
	default:
		return false
	}
	t.data = bytes.TrimSpace(data[1 : len(data)-1])
	return true
}

// maxValues limits the number of values of a tensor.
const maxValues = 1 << 40

// parseShape returns the dimensions of a tensor, and the text of all but the first. It returns false if there is no
// dimension, if one is below least (0 or 1), or if the tensor has too many values.
func parseShape(shape []byte, least int) (sizes []int, rest []byte, ok bool) {
	dims, ok := elements(shape)
	if !ok || len(dims) == 0 {
		return nil, nil, false
	}
	values := 1
	for i, text := range dims {
		n, err := strconv.Atoi(string(text))
		if err != nil || n < least || n > maxValues/max(values, 1) {
			return nil, nil, false
		}
		values *= n
		sizes = append(sizes, n)
		if i > 0 {
			rest = append(append(rest, ','), text...)
		}
	}
	return sizes, rest, true
}

func product(sizes []int) int {
	n := 1
	for _, size := range sizes {
		n *= size
	}
	return n
}

// Merge returns the body that requests all inferences of the requests, in order, as consecutive pieces of text. The
// requests have the same key.
func Merge(requests []*Request) (body [][]byte) {
	first, size := requests[0], 0
	for _, r := range requests {
		size += r.size
	}
	add := func(text ...string) {
		for _, t := range text {
			body = append(body, []byte(t))
		}
	}
	data := func(input int) {
		for i, r := range requests {
			if i > 0 {
				add(",")
			}
			body = append(body, r.inputs[input].data)
		}
	}
	add("{")
	body = append(body, first.other)
	if !first.v2 {
		add(`"instances":[`)
		data(0)
		add("]}")
		return body
	}
	add(`"inputs":[`)
	for i, t := range first.inputs {
		if i > 0 {
			add(",")
		}
		add("{")
		body = append(body, t.other)
		add(`"shape":[`, strconv.Itoa(size))
		body = append(body, t.dims)
		add(`],"data":[`)
		data(i)
		add("]}")
	}
	add("]}")
	return body
}
