package safetensors

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestIndex(t *testing.T) {
	x, err := ParseIndex([]byte(`{"metadata":{"total_size":3,"more":[{}]},"weight_map":{"b":"two","a":"one","c":"two"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"one", "two"}; !reflect.DeepEqual(x.Shards, want) {
		t.Errorf("shards %v, want %v", x.Shards, want)
	}
	h := &Header{Tensors: []Tensor{{Name: "x"}, {Name: "c"}, {Name: "a"}, {Name: "b"}}}
	got, err := x.Select("two", h)
	if want := []Tensor{{Name: "c"}, {Name: "b"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if _, err := x.Select("two", &Header{}); err == nil || err.Error() != `two: tensor "b": the index expects it in this file, which does not contain it` {
		t.Errorf("a tensor missing in the file: got %v, want an error that names it", err)
	}
}

func TestInvalidIndex(t *testing.T) {
	for text, want := range map[string]string{
		``:                                   "ends too early",
		`[]`:                                 "the index is a list, expected an object",
		`{}`:                                 "no weight_map",
		`{"weight_map":[]}`:                  "weight_map is a list, expected an object",
		`{"weight_map":{"a":1}}`:             `weight_map."a" is 1, expected a string`,
		`{"weight_map":{"a":""}}`:            `tensor "a": is in ""`,
		`{"weight_map":{"a":"."}}`:           `tensor "a": is in "."`,
		`{"weight_map":{"a":"../b"}}`:        `tensor "a": is in "../b", expected a file in the folder of the index`,
		`{"weight_map":{"a":"b/../../c"}}`:   "expected a file in the folder",
		`{"weight_map":{"a":"/etc/passwd"}}`: "expected a file in the folder",
		`{"weight_map":{"a":"b","a":"c"}}`:   "duplicate",
		`{"weight_map":{},"weight_map":{}}`:  "duplicate",
		`{"weight_map":{}} {}`:               "something follows",
		`{"weight_map":{}`:                   "not JSON",
	} {
		_, err := ParseIndex([]byte(text))
		var wrong *Error
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":3},"weight_map":{"b":"two","a":"one"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := ParseIndex(data)
		var wrong *Error
		if err != nil && !errors.As(err, &wrong) {
			t.Fatal(err)
		}
		if err == nil && len(x.Shards) > len(x.Tensors) {
			t.Errorf("got %d shards for %d tensors, want at most one each", len(x.Shards), len(x.Tensors))
		}
	})
}
