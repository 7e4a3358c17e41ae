package safetensors

import (
	"encoding/binary"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// AppendHeader appends the header of a file with the tensors in this order, whatever their offsets. Like the reference, it
// pads the header so that the tensors begin at a multiple of 8.
func AppendHeader(out []byte, tensors []Tensor, metadata map[string]string) ([]byte, error) {
	begin := len(out)
	out = append(out, make([]byte, lengthBytes)...)
	separator := byte('{')
	member := func(key string, value any) (err error) {
		out = append(out, separator)
		separator = ','
		if out, err = jsontext.AppendQuote(out, key); err != nil {
			return err
		}
		text, err := json.Marshal(value, json.Deterministic(true))
		out = append(append(out, ':'), text...)
		return err
	}
	if len(metadata) > 0 {
		if err := member(MetadataKey, metadata); err != nil {
			return nil, err
		}
	}
	at := int64(0)
	for _, t := range tensors {
		err := member(t.Name, struct {
			DType  string   `json:"dtype"`
			Shape  []int64  `json:"shape"`
			Ranges [2]int64 `json:"data_offsets"`
		}{t.DType, t.Shape, [2]int64{at, at + t.Bytes}})
		if err != nil {
			return nil, err
		}
		at += t.Bytes
	}
	if separator == '{' {
		out = append(out, separator)
	}
	out = append(out, '}')
	for (len(out)-begin)%8 != 0 {
		out = append(out, ' ')
	}
	n := len(out) - begin - lengthBytes
	if n > maxHeader {
		return nil, fault("the header has %d bytes, expected at most %d", n, maxHeader)
	}
	binary.LittleEndian.PutUint64(out[begin:], uint64(n))
	return out, nil
}
