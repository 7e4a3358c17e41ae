package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// file returns a file with the given header, followed by data bytes.
func file(header string, data int) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), make([]byte, data)...)
}

func read(data []byte) (*Header, error) { return Read(bytes.NewReader(data), int64(len(data))) }

// TestValid: Read accepts files that the reference implementation accepts.
func TestValid(t *testing.T) {
	deep := strings.Repeat("[", 125) + strings.Repeat("]", 125)
	for what, c := range map[string]struct {
		data []byte
		want []Tensor
		meta map[string]string
	}{
		"nothing":          {data: file(`{}`, 0)},
		"blanks behind":    {data: file("{} \t\r\n ", 0)},
		"metadata alone":   {data: file(`{"__metadata__":{"format":"pt","é":""}}`, 0), meta: map[string]string{"format": "pt", "é": ""}},
		"metadata null":    {data: file(`{"__metadata__":null}`, 0)},
		"scalar":           {data: file(`{"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}`, 8), want: []Tensor{{"s", "F64", []int64{}, 0, 8}}},
		"empty":            {data: file(`{"z":{"dtype":"F32","shape":[3,0,2],"data_offsets":[0,0]}}`, 0), want: []Tensor{{"z", "F32", []int64{3, 0, 2}, 0, 0}}},
		"empty by far":     {data: file(`{"z":{"dtype":"F64","shape":[0,9223372036854775807,9223372036854775807],"data_offsets":[0,0]}}`, 0), want: []Tensor{{"z", "F64", []int64{0, 9223372036854775807, 9223372036854775807}, 0, 0}}},
		"other order":      {data: file(`{"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"a":{"data_offsets":[0,1],"shape":[1],"dtype":"BOOL"}}`, 3), want: []Tensor{{"a", "BOOL", []int64{1}, 0, 1}, {"b", "U8", []int64{2}, 1, 2}}},
		"empty among full": {data: file(`{"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 1), want: []Tensor{{"a", "U8", []int64{0}, 0, 0}, {"b", "U8", []int64{1}, 0, 1}}},
		"more keys":        {data: file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"note":`+deep+`}}`, 1), want: []Tensor{{"a", "U8", []int64{1}, 0, 1}}},
		"no name":          {data: file(`{"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), want: []Tensor{{"", "U8", []int64{1}, 0, 1}}},
	} {
		t.Run(what, func(t *testing.T) {
			h, err := read(c.data)
			if err != nil {
				t.Fatal(err)
			}
			for i := range h.Tensors {
				h.Tensors[i].Offset -= h.Bytes
			}
			if !reflect.DeepEqual(h.Tensors, c.want) || !reflect.DeepEqual(h.Metadata, c.meta) {
				t.Errorf("%+v, %v, want %+v, %v", h.Tensors, h.Metadata, c.want, c.meta)
			}
		})
	}
	for dtype, size := range sizes {
		if _, err := read(file(fmt.Sprintf(`{"a":{"dtype":%q,"shape":[3],"data_offsets":[0,%d]}}`, dtype, 3*size), int(3*size))); err != nil {
			t.Errorf("%s: got %v, want no error", dtype, err)
		}
	}
}

// TestInvalid: Read refuses files that the reference implementation refuses, and
// duplicate keys. The message names the tensor and the fault.
func TestInvalid(t *testing.T) {
	of := func(dtype, shape, offsets string, data int) []byte {
		return file(fmt.Sprintf(`{"a":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets), data)
	}
	huge := binary.LittleEndian.AppendUint64(nil, 1<<63)
	for what, c := range map[string]struct {
		data []byte
		want string
	}{
		"no bytes":               {nil, "the file has 0 bytes, expected at least 8"},
		"seven bytes":            {make([]byte, 7), "the file has 7 bytes, expected at least 8"},
		"empty header":           {file("", 0), "the header has 0 bytes, expected at least 2"},
		"one byte":               {file("{", 9), "the header has 1 bytes, expected at least 2"},
		"header beyond the end":  {file(`{}`, 0)[:9], "the header has 2 bytes, but the file has 9"},
		"header too long":        {append(binary.LittleEndian.AppendUint64(nil, maxHeader+1), make([]byte, 100)...), "the header has 100000001 bytes, expected at most 100000000"},
		"header beyond numbers":  {append(huge, "{}"...), "the header has 9223372036854775808 bytes, expected at most"},
		"blank first":            {file(` {}`, 0), `begins with ' ', expected {`},
		"list":                   {file(`[1]`, 0), `begins with '[', expected {`},
		"byte-order mark":        {file("\ufeff{}", 0), "expected {"},
		"not UTF-8":              {file("{\"\xff\":1}", 0), "not UTF-8"},
		"half a character":       {file(`{"\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), "not JSON"},
		"not closed":             {file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}`, 1), "not JSON"},
		"comma":                  {file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},}`, 1), "not JSON"},
		"something behind":       {file(`{}{}`, 0), "something follows"},
		"key twice":              {file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2), `duplicate object member name at byte 53, near "a"`},
		"key twice, escaped":     {file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2), "duplicate"},
		"key twice within":       {file(`{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), `tensor "a": the header is not JSON: duplicate object member name at byte 19, near "dtype"`},
		"key twice deep within":  {file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":[{"y":1,"y":1}]}}`, 1), `tensor "a": the header is not JSON: duplicate`},
		"metadata twice":         {file(`{"__metadata__":{},"__metadata__":{}}`, 0), "duplicate"},
		"metadata key twice":     {file(`{"__metadata__":{"a":"","a":""}}`, 0), `__metadata__ is not JSON: duplicate object member name at byte 24, near "a"`},
		"metadata number":        {file(`{"__metadata__":{"a":1}}`, 0), `__metadata__."a" is 1, expected a string`},
		"metadata object":        {file(`{"__metadata__":{"a":{}}}`, 0), "is an object, expected a string"},
		"metadata list":          {file(`{"__metadata__":[]}`, 0), "__metadata__ is a list, expected an object"},
		"ends within":            {file(`{"a":{"dtype":"U8"`, 0), `tensor "a": the header is not JSON: `},
		"tensor a number":        {file(`{"a":1}`, 0), `tensor "a": 1, expected an object`},
		"tensor null":            {file(`{"a":null}`, 0), `tensor "a": null, expected an object`},
		"nested too deep":        {file(`{"a":{"x":`+strings.Repeat("[", 126)+strings.Repeat("]", 126)+`}}`, 0), "nested 128 deep"},
		"no dtype":               {file(`{"a":{"shape":[1],"data_offsets":[0,1]}}`, 1), `tensor "a": dtype is missing`},
		"no shape":               {file(`{"a":{"dtype":"U8","data_offsets":[0,1]}}`, 1), `tensor "a": shape is missing`},
		"no offsets":             {file(`{"a":{"dtype":"U8","shape":[1]}}`, 1), `tensor "a": data_offsets has 0 numbers`},
		"unknown dtype":          {of(`"F8"`, `[1]`, `[0,1]`, 1), `tensor "a": unknown dtype "F8"`},
		"dtype in small":         {of(`"f32"`, `[1]`, `[0,4]`, 4), `unknown dtype "f32"`},
		"dtype a number":         {of(`8`, `[1]`, `[0,1]`, 1), "dtype is 8, expected a string"},
		"shape NaN":              {of(`"U8"`, `[NaN]`, `[0,1]`, 1), "not JSON"},
		"shape below 0":          {of(`"U8"`, `[-1]`, `[0,1]`, 1), `tensor "a": shape has -1, expected a whole number`},
		"shape minus 0":          {of(`"U8"`, `[-0]`, `[0,0]`, 0), "shape has -0"},
		"shape with a point":     {of(`"U8"`, `[1.0]`, `[0,1]`, 1), "shape has 1.0"},
		"shape with a power":     {of(`"U8"`, `[1e0]`, `[0,1]`, 1), "shape has 1e0"},
		"shape a text":           {of(`"U8"`, `["1"]`, `[0,1]`, 1), `shape has "1"`},
		"shape null":             {of(`"U8"`, `null`, `[0,1]`, 1), "shape is null, expected a list"},
		"shape beyond numbers":   {of(`"U8"`, `[18446744073709551616]`, `[0,1]`, 1), "expected a whole number from 0 to"},
		"product beyond":         {of(`"U8"`, `[4294967296,4294967296]`, `[0,0]`, 0), "exceeds 64 bits"},
		"product beyond, then 0": {of(`"U8"`, `[9223372036854775807,4,0]`, `[0,0]`, 0), "exceeds 64 bits"},
		"bytes beyond":           {of(`"F64"`, `[4611686018427387904]`, `[0,0]`, 0), "exceeds 64 bits"},
		"bytes beyond, signed":   {of(`"F64"`, `[1152921504606846976]`, `[0,0]`, 0), "exceeds 64 bits"},
		"one offset":             {of(`"U8"`, `[1]`, `[0]`, 1), "data_offsets has 1 numbers, expected 2"},
		"three offsets":          {of(`"U8"`, `[1]`, `[0,1,2]`, 1), "data_offsets has 3 numbers, expected 2"},
		"end before begin":       {of(`"U8"`, `[1]`, `[1,0]`, 1), `tensor "a": ends at 0, before its begin at 1`},
		"too long":               {of(`"U8"`, `[1]`, `[0,2]`, 2), `tensor "a": 2 bytes, expected 1 for U8 of shape [1]`},
		"too short":              {of(`"F32"`, `[2,2]`, `[0,15]`, 15), `tensor "a": 15 bytes, expected 16 for F32 of shape [2 2]`},
		"hole at the begin":      {of(`"U8"`, `[1]`, `[1,2]`, 2), `tensor "a": begins at 1, after a gap`},
		"hole":                   {file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3), `tensor "b": begins at 2, after a gap: expected 1`},
		"overlap":                {file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), `tensor "b": begins at 1, within the previous tensor`},
		"same place":             {file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2), "begins at 0, within"},
		"file too short":         {of(`"U8"`, `[9]`, `[0,9]`, 8), `tensor "a": ends 1 bytes after the end of the file`},
		"file too long":          {of(`"U8"`, `[1]`, `[0,1]`, 2), "1 bytes after the last tensor"},
		"no tensor, some bytes":  {file(`{}`, 1), "1 bytes after the last tensor"},
		"end near the last":      {of(`"U8"`, `[1]`, `[9223372036854775806,9223372036854775807]`, 1), "after a gap"},
		"a long name":            {file(`{"`+strings.Repeat("é", 1000)+`":{}}`, 0), `é"…: dtype is missing`},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := read(c.data)
			var wrong *Error
			if !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 400 {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
		})
	}
}

// TestShrinks: if the file has become shorter since its size was determined, Read returns
// an *Error.
func TestShrinks(t *testing.T) {
	data := file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1)
	for left := range len(data) - 1 {
		_, err := Read(bytes.NewReader(data[:left]), int64(len(data)))
		var wrong *Error
		if !errors.As(err, &wrong) {
			t.Errorf("%d of %d bytes remain: got %v, want an *Error", left, len(data), err)
		}
	}
}

// TestOtherErrors: an error of the disk is not an *Error, because the file is not at
// fault.
func TestOtherErrors(t *testing.T) {
	broken := errors.New("input/output error")
	_, err := Read(failing{broken}, 100)
	var wrong *Error
	if !errors.Is(err, broken) || errors.As(err, &wrong) {
		t.Errorf("got %v, want the disk's error and no *Error", err)
	}
}

type failing struct{ err error }

func (f failing) ReadAt([]byte, int64) (int, error) { return 0, f.err }

// tensors draws tensors without gaps between them.
func tensors(t *rapid.T) (list []Tensor, metadata map[string]string, data int) {
	names := rapid.SliceOfNDistinct(rapid.String().Filter(func(s string) bool { return s != MetadataKey }), 0, 5, rapid.ID).Draw(t, "names")
	for _, name := range names {
		dtype := rapid.SampledFrom([]string{"BOOL", "F16", "BF16", "F32", "I64"}).Draw(t, "dtype")
		shape := rapid.SliceOfN(rapid.Int64Range(0, 4), 0, 4).Draw(t, "shape")
		n, err := length(dtype, shape)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, Tensor{name, dtype, shape, int64(data), int64(n)})
		data += int(n)
	}
	metadata = rapid.MapOfN(rapid.String(), rapid.String(), 0, 3).Draw(t, "metadata")
	return list, metadata, data
}

// TestWriteRead: Read returns the tensors and metadata that AppendHeader has written.
func TestWriteRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list, metadata, data := tensors(t)
		text, err := AppendHeader([]byte("before"), list, metadata)
		if err != nil {
			t.Fatal(err)
		}
		text = text[len("before"):]
		if len(text)%8 != 0 {
			t.Errorf("got a header of %d bytes, want a multiple of 8", len(text))
		}
		h, err := read(append(text, make([]byte, data)...))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for i := range list {
			list[i].Offset += h.Bytes
		}
		byPlace := map[string]Tensor{}
		for _, tensor := range h.Tensors {
			byPlace[tensor.Name] = tensor
		}
		for _, want := range list {
			if !reflect.DeepEqual(byPlace[want.Name], want) {
				t.Errorf("%+v became %+v", want, byPlace[want.Name])
			}
		}
		if len(h.Tensors) != len(list) || len(metadata)+len(h.Metadata) > 0 && !reflect.DeepEqual(h.Metadata, metadata) {
			t.Errorf("%d tensors, metadata %v, want %d, %v", len(h.Tensors), h.Metadata, len(list), metadata)
		}
	})
}

// FuzzRead: every error of Read for a file's content is an *Error. The tensors of a valid
// file cover its data without gaps, and the header reads the same after it has been
// written again.
func FuzzRead(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"U8","shape":[2,1],"data_offsets":[0,2]},"__metadata__":{"x":"y"}}`, 2))
	f.Add(file(`{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"more":[{"b":null}]}}`, 4))
	f.Add(file(`{"\u00e9":{"dtype":"BF16","shape":[0],"data_offsets":[0,0]}}  `, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := read(data)
		var wrong *Error
		if err != nil {
			if !errors.As(err, &wrong) {
				t.Fatal(err)
			}
			return
		}
		end := h.Bytes
		for _, tensor := range h.Tensors {
			if tensor.Offset != end {
				t.Fatalf("got %+v, want an offset of %d", tensor, end)
			}
			end += tensor.Bytes
		}
		if end != int64(len(data)) {
			t.Fatalf("the last tensor ends at byte %d, want %d", end, len(data))
		}
		text, err := AppendHeader(nil, h.Tensors, h.Metadata)
		if err != nil {
			t.Fatal(err)
		}
		again, err := read(append(text, data[h.Bytes:]...))
		if err != nil {
			t.Fatal(err)
		}
		for i := range again.Tensors {
			again.Tensors[i].Offset += h.Bytes - again.Bytes
		}
		if len(h.Tensors) > 0 && !reflect.DeepEqual(again.Tensors, h.Tensors) {
			t.Errorf("got %+v after writing and reading, want %+v", again.Tensors, h.Tensors)
		}
	})
}
