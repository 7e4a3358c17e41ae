package safetensors

import (
	"encoding/binary"
	"maps"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// AppendHeader appends the header of a file in which the tensors follow each other
// as they do here, whatever their offsets. It is as long as makes the tensors begin
// at a multiple of 8, as the reference does.
func AppendHeader(out []byte, tensors []Tensor, metadata map[string]string) ([]byte, error) {
	begin := len(out)
	out = append(out, make([]byte, lengthBytes)...)
	member := func(first bool, key string) (err error) {
		if !first {
			out = append(out, ',')
		}
		out, err = jsontext.AppendQuote(out, key)
		out = append(out, ':')
		return err
	}
	out = append(out, '{')
	first := true
	if len(metadata) > 0 {
		if err := member(true, metadataKey); err != nil {
			return nil, err
		}
		out = append(out, '{')
		for _, key := range slices.Sorted(maps.Keys(metadata)) {
			if err := member(first, key); err != nil {
				return nil, err
			}
			var err error
			if out, err = jsontext.AppendQuote(out, metadata[key]); err != nil {
				return nil, err
			}
			first = false
		}
		out = append(out, '}')
		first = false
	}
	at := int64(0)
	for _, t := range tensors {
		if err := member(first, t.Name); err != nil {
			return nil, err
		}
		out = append(out, `{"dtype":"`...)
		out = append(out, t.DType...)
		out = append(out, `","shape":`...)
		out = appendNumbers(out, t.Shape)
		out = append(out, `,"data_offsets":`...)
		out = appendNumbers(out, []int64{at, at + t.Bytes})
		out = append(out, '}')
		at += t.Bytes
		first = false
	}
	out = append(out, '}')
	for (len(out)-begin)%8 != 0 {
		out = append(out, ' ')
	}
	n := len(out) - begin - lengthBytes
	if n > maxHeader {
		return nil, fault("a header of %d bytes, expected at most %d", n, maxHeader)
	}
	binary.LittleEndian.PutUint64(out[begin:], uint64(n))
	return out, nil
}

func appendNumbers(out []byte, list []int64) []byte {
	out = append(out, '[')
	for i, n := range list {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, n, 10)
	}
	return append(out, ']')
}
