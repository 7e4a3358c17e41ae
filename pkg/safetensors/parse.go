package safetensors

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// parser reads JSON token by token. The decoder reports repeated keys, invalid Unicode and malformed numbers.
type parser struct{ *jsontext.Decoder }

// object reads an object and calls value for each key. `what` names the object in messages; it is empty if the caller
// has no name.
func (p parser) object(what string, value func(key string) error) error {
	if kind := p.PeekKind(); kind != '{' && kind != 0 {
		if what != "" {
			what += " is "
		}
		return fault("%s%s, expected an object", what, p.describe())
	}
	if _, err := p.ReadToken(); err != nil {
		return err
	}
	for p.PeekKind() != '}' {
		key, err := p.ReadToken()
		if err != nil {
			return err
		}
		if err := value(key.String()); err != nil {
			return err
		}
	}
	_, err := p.ReadToken()
	return err
}

// end checks that only white space follows the value.
func (p parser) end() error {
	_, err := p.ReadToken()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		err = fault("something follows the JSON object, at byte %d", p.InputOffset())
	}
	return err
}

// describe describes the next value.
func (p parser) describe() string {
	switch kind := p.PeekKind(); kind {
	case '{':
		return "an object"
	case '[':
		return "a list"
	default:
		token, err := p.ReadToken()
		if err != nil {
			return "no value"
		}
		if kind == '"' {
			return quote(token.String())
		}
		return token.String()
	}
}

// text reads a string.
func (p parser) text(what string) (string, error) {
	if kind := p.PeekKind(); kind != '"' && kind != 0 {
		return "", fault("%s is %s, expected a string", what, p.describe())
	}
	token, err := p.ReadToken()
	if err != nil {
		return "", err
	}
	return token.String(), nil
}

// number reads a non-negative integer. As in the reference, 1.0, 1e3 and -0 are not integers.
func (p parser) number(what string) (int64, error) {
	if kind := p.PeekKind(); kind != '0' && kind != 0 {
		return 0, fault("%s has %s, expected a whole number, 0 or more", what, p.describe())
	}
	token, err := p.ReadToken()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(token.String(), 10, 64)
	if err != nil || n > math.MaxInt64 {
		return 0, fault("%s has %.40s, expected a whole number from 0 to %d", what, token, int64(math.MaxInt64))
	}
	return int64(n), nil
}

// numbers reads a list of non-negative integers.
func (p parser) numbers(what string) ([]int64, error) {
	if kind := p.PeekKind(); kind != '[' && kind != 0 {
		return nil, fault("%s is %s, expected a list of numbers", what, p.describe())
	}
	if _, err := p.ReadToken(); err != nil {
		return nil, err
	}
	list := []int64{}
	for p.PeekKind() != ']' {
		n, err := p.number(what)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	_, err := p.ReadToken()
	return list, err
}

// skip reads a value of any kind.
func (p parser) skip() error {
	for depth := p.StackDepth(); ; {
		if _, err := p.ReadToken(); err != nil {
			return err
		}
		switch now := p.StackDepth(); {
		case now > maxDepth:
			return fault("lists and objects are nested %d deep, expected at most %d", now, maxDepth)
		case now == depth:
			return nil
		}
	}
}

// metadata reads the metadata, strings under arbitrary keys; null means none.
func (p parser) metadata(h *Header) error {
	if p.PeekKind() == 'n' {
		return p.skip()
	}
	h.Metadata = map[string]string{}
	return asFault(p.object(MetadataKey, func(key string) (err error) {
		h.Metadata[key], err = p.text(MetadataKey + "." + quote(key))
		return err
	}), MetadataKey)
}

// tensor reads the entry of a tensor. As in the reference, it ignores unknown keys.
func (p parser) tensor(name string) (Tensor, error) {
	t := Tensor{Name: name}
	var span []int64
	err := p.object("", func(key string) (err error) {
		switch key {
		case "dtype":
			t.DType, err = p.text(key)
		case "shape":
			t.Shape, err = p.numbers(key)
		case "data_offsets":
			span, err = p.numbers(key)
		default:
			err = p.skip()
		}
		return err
	})
	if err == nil {
		err = t.check(span)
	}
	err = asFault(err, "the header")
	var wrong *Error
	if errors.As(err, &wrong) && wrong.Tensor == "" {
		wrong.Tensor = name
	}
	return t, err
}

// check checks the entry of a tensor for consistency.
func (t *Tensor) check(span []int64) error {
	switch {
	case t.DType == "":
		return fault("dtype is missing, expected a type such as F16")
	case t.Shape == nil:
		return fault("shape is missing, expected a list such as [2,3]")
	case len(span) != 2:
		return fault("data_offsets has %d numbers, expected 2: begin and end", len(span))
	case span[1] < span[0]:
		return fault("ends at %d, before its begin at %d", span[1], span[0])
	}
	t.Offset, t.Bytes = span[0], span[1]-span[0]
	if err := CheckLength(t.DType, t.Shape, t.Bytes); err != nil {
		return &Error{Reason: err.Error()}
	}
	return nil
}

// CheckLength returns an error unless the type is known and bytes is the length of a tensor with that type and shape.
func CheckLength(dtype string, dims []int64, bytes int64) error {
	want, err := length(dtype, dims)
	if err == nil && bytes != want {
		err = fmt.Errorf("%d bytes, expected %d for %s of shape %s", bytes, want, dtype, shape(dims))
	}
	return err
}

// shape formats the first few dimensions.
func shape(dims []int64) string {
	const most = 8
	if len(dims) <= most {
		return fmt.Sprint(dims)
	}
	text := fmt.Sprint(dims[:most])
	return text[:len(text)-1] + " …]"
}
